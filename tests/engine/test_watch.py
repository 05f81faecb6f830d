"""Alive, stalled, silent: the watch with a clock in our hands."""

from __future__ import annotations

from k3ctl.engine.client import Load, metrics
from k3ctl.engine.watch import Watch

IDLE = Load(generated_tokens=10, prompt_tokens=5, running=0, waiting=0)


def busy(generated: float, **more: float) -> Load:
    return Load(generated_tokens=generated, prompt_tokens=5, running=33, waiting=67, **more)


def test_running_requests_without_progress_for_30_s_are_a_stall_and_told_once():
    watch = Watch(now=0)
    assert watch.saw_load(busy(100), 0) is None
    assert watch.saw_load(busy(100), 29) is None
    finding = watch.saw_load(busy(100), 30)
    assert finding is not None and finding.kind == "stalled" and finding.evidence
    assert finding.text == "33 requests run and nothing got done for 30 s"
    assert watch.saw_load(busy(100), 35) is None


def test_a_stall_that_ends_is_told_and_a_second_one_is_told_again():
    watch = Watch(now=0)
    watch.saw_load(busy(100), 0)
    watch.saw_load(busy(100), 31)
    resumed = watch.saw_load(busy(101), 40)
    assert resumed is not None and resumed.kind == "resumed"
    again = watch.saw_load(busy(101), 71)
    assert again is not None and again.kind == "stalled"


def test_a_long_prompt_that_fills_the_cache_is_no_stall():
    watch = Watch(now=0)
    for second in range(0, 120, 5):
        assert watch.saw_load(busy(100, cache_used=second / 1000), second) is None


def test_steps_that_the_witness_counts_are_progress():
    watch = Watch(now=0)
    for second in range(0, 120, 5):
        assert watch.saw_load(busy(100, steps=second), second) is None


def test_an_idle_engine_is_never_stalled_but_asked_for_a_sign_of_life():
    watch = Watch(now=0, idle_s=60)
    assert watch.saw_load(IDLE, 0) is None
    assert not watch.wants_canary(59)
    assert watch.saw_load(IDLE, 600) is None
    assert watch.wants_canary(60)
    assert watch.saw_answer(60) is None
    assert not watch.wants_canary(119)


def test_work_that_gets_done_needs_no_canary():
    watch = Watch(now=0, idle_s=60)
    for second in range(0, 300, 5):
        watch.saw_load(busy(second), second)
    assert not watch.wants_canary(300)


def test_a_silent_engine_is_told_once_and_its_return_too():
    watch = Watch(now=0, idle_s=60)
    first = watch.saw_silence("timed out", 70)
    assert first is not None and first.kind == "not-answering" and first.evidence
    assert watch.saw_silence("timed out", 140) is None
    back = watch.saw_answer(200)
    assert back is not None and back.kind == "answers"


def test_metrics_that_cannot_be_read_are_told_once_and_canaries_go_on():
    watch = Watch(now=0, idle_s=60)
    first = watch.saw_no_metrics("it is a login page")
    assert first is not None and "login page" in first.text
    assert watch.saw_no_metrics("it is a login page") is None
    assert watch.wants_canary(61)


def test_prometheus_text_is_summed_over_labels_and_bad_lines_are_left_out():
    text = '# HELP x\nx{a="1 2"} 3\nx{a="}"} 4.5\ny 1e3\nz\n<html>\nw{ 5\nu NaNope\n'
    assert metrics(text) == {"x": 7.5, "y": 1000.0}
