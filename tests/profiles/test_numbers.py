import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ctl.profiles import numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("16k", 16_000), ("16K", 16_384), ("1M", 1_048_576), ("25.6k", 25_600), ("256M", 268_435_456)],
)
def test_numbers_read_as_vllm_reads_them(text, value):
    assert numbers.human_int(text) == value


@pytest.mark.parametrize("text", ["1.5K", "k", "16 k", "16kb", "", "1e3"])
def test_what_vllm_refuses_is_refused(text):
    with pytest.raises(ValueError):
        numbers.human_int(text)


def test_json_numbers_may_carry_a_suffix_but_strings_stay():
    assert numbers.json_value('{"bytes": 80m, "name": "80m"}') == {"bytes": 80_000_000, "name": "80m"}


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("true", True), ("1K", 1024), ("dspark", "dspark"), ("[1, 2]", [1, 2])]
)
def test_a_field_is_json_or_else_text(text, value):
    assert numbers.loose_value(text) == value


@given(st.integers(min_value=0, max_value=9000), st.sampled_from("kKmMgGtT"))
def test_suffixes_only_scale(number, suffix):
    scale = numbers.human_int(f"1{suffix}")
    assert numbers.human_int(f"{number}{suffix}") == number * scale
