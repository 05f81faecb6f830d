from __future__ import annotations

from dataclasses import replace

import pytest

from k3ctl.loadtest import scrape
from k3ctl.loadtest.scrape import Engagement, Sample
from k3ctl.loadtest.window import PathShare, server_window


def sample(at: float, tokens: float, **fields: object) -> Sample:
    return Sample(ts=1000.0 + at, mono=at, generation_tokens=tokens, prompt_tokens=tokens, **fields)  # type: ignore[arg-type]


def test_rates_are_differences_inside_the_window() -> None:
    samples = [sample(0, 0), sample(10, 500), sample(20, 1500), sample(30, 9000)]
    window = server_window(samples, 1009.0, 1021.0)
    assert window is not None
    assert window.output_tok_s == pytest.approx(100.0)


def test_a_window_shorter_than_the_sampling_takes_its_neighbours() -> None:
    samples = [sample(0, 0), sample(1, 10), sample(2, 30)]
    window = server_window(samples, 1000.4, 1000.6)
    assert window is not None
    assert (window.samples, window.output_tok_s) == (2, 10.0)


def test_no_samples_no_window() -> None:
    assert server_window([], 0.0, 1.0) is None
    assert server_window([sample(0, 0)], None, None) is None


def test_acceptance_includes_the_bonus_token() -> None:
    before = sample(0, 0, drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=(0.0, 0.0))
    after = sample(
        10, 100, drafts=100, draft_tokens=200, accepted_tokens=130, accepted_per_position=(90.0, 40.0)
    )
    window = server_window([before, after], None, None)
    assert window is not None
    assert window.acceptance_length == pytest.approx(2.3)
    assert window.acceptance_per_position == (0.9, 0.4)


def test_the_servers_time_per_output_token_is_that_of_the_window() -> None:
    before, after = (
        sample(0, 0, tpot_sum_s=1.0, tpot_count=10),
        sample(10, 100, tpot_sum_s=1.3, tpot_count=20),
    )
    window = server_window([before, after], None, None)
    assert window is not None
    assert window.tpot_ms == pytest.approx(30.0)
    idle = server_window([before, sample(10, 100, tpot_sum_s=1.0, tpot_count=10)], None, None)
    assert idle is not None
    assert idle.tpot_ms is None


def test_drafts_that_stay_zero_do_not_divide() -> None:
    window = server_window(
        [sample(0, 0, drafts=0, accepted_tokens=0), sample(9, 9, drafts=0, accepted_tokens=0)], None, None
    )
    assert window is not None
    assert window.acceptance_length is None


@pytest.mark.parametrize(
    "later",
    [
        sample(2, 3),
        sample(2, 20, process_start=9.0),
        sample(2, 20, engagement=Engagement(0, 0, {}, started_at=9.0, decode_backend="auto")),
    ],
    ids=["counter-fell", "process-start-moved", "worker-start-moved"],
)
def test_a_restart_is_seen(later: Sample) -> None:
    first = sample(
        1, 10, process_start=5.0, engagement=Engagement(0, 0, {}, started_at=5.0, decode_backend="auto")
    )
    window = server_window([first, later], None, None)
    assert window is not None
    assert window.restarted


def test_a_clock_jump_is_measured() -> None:
    samples = [sample(0, 0), sample(1, 1), replace(sample(2, 2), ts=1005.0)]
    window = server_window(samples, None, None)
    assert window is not None
    assert window.clock_jump_s == pytest.approx(3.0)


def test_engagement_counts_decode_and_mixed_steps_of_all_workers() -> None:
    page = {
        "started_at": 1.0, "decode_backend": "latency_specialized",
        "steps": [
            {"path": "specialized", "kind": "decode", "reason": "", "steps": 90},
            {"path": "standard", "kind": "mixed", "reason": "prefill-in-batch", "steps": 8},
            {"path": "standard", "kind": "decode", "reason": "rows-over-limit", "steps": 2},
            {"path": "standard", "kind": "prefill", "reason": "", "steps": 50},
        ],
    }  # fmt: skip
    found = scrape.engagement({"schema": "k3.witness.table/1", "workers": [page, page]})
    assert found is not None
    assert (found.specialized, found.decode_and_mixed) == (180, 200)
    share = PathShare(found.specialized, found.decode_and_mixed, found.reasons)
    assert share.share == 0.9
    assert share.decode_share == pytest.approx(180 / 184)


def test_a_server_without_a_witness_has_no_engagement() -> None:
    assert scrape.engagement({"schema": "k3.witness.table/1", "workers": []}) is None
    assert PathShare(0, 0, {}).share is None


def test_a_page_cut_off_half_way_keeps_its_whole_lines() -> None:
    found = scrape.sample_metrics(
        'vllm:generation_tokens_total{engine="0"} 1\nvllm:prompt_tok{', ts=0.0, mono=0.0
    )
    assert found.generation_tokens == 1.0
    assert found.prompt_tokens is None


def test_a_page_that_is_no_metrics_page_gives_an_empty_sample() -> None:
    assert scrape.sample_metrics("<html>login</html>", ts=0.0, mono=0.0) == Sample(ts=0.0, mono=0.0)
