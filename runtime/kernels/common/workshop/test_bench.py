"""What the bench writes, and how many buffers it rotates over; timing itself needs a GPU."""

import json

import pytest

from runtime.kernels.common.workshop.bench import Result, Timing, append, buffer_sets, selected

RESULT = Result("attn_res", {"tokens": 1}, "cute", Timing(2.0, 1.9, 2.2, 15), moved_bytes=4_300_000)


def test_a_line_has_bandwidth_and_the_share_of_the_floor():
    line = json.loads(RESULT.line())
    assert line["schema"] == "k3.kernel_bench/1"
    assert line["gb_s"] == 2150.0 and line["floor_us"] == 1.0 and line["of_floor"] == 0.5
    assert line["timing"] == {"median_us": 2.0, "low_us": 1.9, "high_us": 2.2, "replays": 15}


def test_results_are_appended_as_json_lines(tmp_path):
    path = tmp_path / "log" / "attn_res.jsonl"
    append(path, [RESULT])
    append(path, [RESULT, RESULT])
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3


def test_buffers_exceed_the_cache_twice_and_are_at_least_eight():
    assert buffer_sets(90_000_000) == 8
    assert buffer_sets(1_000_000) * 1_000_000 > 120e6
    assert buffer_sets(100) == 512


@pytest.mark.parametrize(
    ("only", "taken"),
    [
        ([], True),
        (["n=8"], True),
        (["n=7", "n=8"], True),
        (["n=7"], False),
        (["n=8", "k=3"], False),
        (["m=1"], False),
    ],
)
def test_cases_are_selected_by_every_name_and_any_value_of_it(only, taken):
    assert selected({"n": 8, "k": 4}, only) is taken
