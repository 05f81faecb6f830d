"""Choosing an implementation: preference, reasons, explicit requests, strictness, records."""

import logging

import pytest

from runtime.kernels.common.launch import dispatch
from runtime.kernels.common.launch.dispatch import (
    Choice,
    FallbackError,
    Variant,
    choose,
    record,
    records,
    strict,
)

FAST, SLOW = Variant("cute", (), "measured faster"), Variant("triton", fallback=True)
REFUSED = Variant("cute", ("k 100 is not a multiple of 64", "compiled for sm_90a, not for sm_80"))


@pytest.fixture(autouse=True)
def _clean():
    dispatch.reset()
    yield
    dispatch.reset()


def test_the_first_variant_that_can_run_is_taken_with_its_reason():
    assert choose("op", [FAST, SLOW]) == Choice("op", "cute", "measured faster")


def test_a_fallback_carries_every_reason_of_what_was_skipped():
    choice = choose("op", [REFUSED, SLOW])
    assert choice.variant == "triton" and choice.fallback
    assert all(reason in choice.reason for reason in REFUSED.refusals)


def test_a_rejection_is_logged_once(caplog):
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            choose("op", [REFUSED, SLOW])
    assert len(caplog.records) == 1 and "not a multiple of 64" in caplog.text


def test_an_explicit_request_that_cannot_run_raises_with_all_reasons():
    with pytest.raises(ValueError, match="multiple of 64; compiled for"):
        choose("op", [REFUSED, SLOW], "cute")


def test_an_explicit_request_for_the_fallback_is_honoured():
    assert choose("op", [FAST, SLOW], "triton") == Choice("op", "triton", "requested")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="'cuda', expected one of auto, cute, triton"):
        choose("op", [FAST, SLOW], "cuda")


def test_nothing_that_can_run_is_an_error():
    with pytest.raises(RuntimeError, match="no implementation"):
        choose("op", [REFUSED, Variant("triton", ("not installed",), fallback=True)])


def test_strict_mode_raises_on_a_fallback_chosen_now_or_called_later():
    before = choose("op", [REFUSED, SLOW])
    with strict():
        with pytest.raises(FallbackError, match="multiple of 64"):
            choose("op", [REFUSED, SLOW])
        with pytest.raises(FallbackError, match="triton"):
            record(before)
        record(choose("op", [FAST, SLOW]))
    record(before)


def test_calls_are_counted_by_choice():
    fast, slow = choose("op", [FAST, SLOW]), choose("op", [REFUSED, SLOW])
    for choice in (fast, slow, fast):
        record(choice)
    assert records() == {fast: 2, slow: 1}
