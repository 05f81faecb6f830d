"""Published numbers: every one has its source and its date, and the curves come from the same rows."""

from __future__ import annotations

import pytest

from k3ctl.deployment import Deployment
from k3ctl.facts import published
from k3ctl.telemetry.reference import step_anchor


def test_every_entry_says_where_it_is_from_and_when() -> None:
    entries = [*published.anchors(), *published.kernels(), published.layer(), published.acceptance()]
    assert len(published.anchors()) >= 19 and len(published.kernels()) == 5
    for entry in entries:
        assert len(entry.source) > 10 and "2026" in entry.date, entry
    ids = [entry.id for entry in (*published.anchors(), *published.kernels())]
    assert len(set(ids)) == len(ids)
    assert {f"P{n}" for n in range(25, 33)} <= {name.split("-")[0] for name in ids}


SOURCES = {
    # id: GPU, GPUs, TP, K, acceptance length, tokens in, tokens out, unit: as the sources state them; None: they do not
    "P1": ("GB300", 16, 16, 7, 6.0, 1, 1000, "decode_tok_s"),
    "P2": ("GB300", 16, 16, 0, None, None, None, "decode_tok_s"),
    "P3": ("GB300", 8, 8, 0, None, None, None, "decode_tok_s"),
    "P6": ("GB300", 8, 8, 0, None, 128, 512, "itl_ms"),
    "P7": ("B300", 8, 8, 8, None, 8000, 1000, "output_tok_s"),
    "P8": ("B300", 8, 8, 8, None, 8000, 1000, "output_tok_s"),
    "P10": ("B300", 8, None, 0, None, 8000, 1000, "total_tok_s_per_gpu"),
    "P11": ("B300", 8, None, None, None, 8000, 1000, "total_tok_s_per_gpu"),
    "P18": ("MI355X", 8, None, None, 5.0, None, None, "total_tok_s_per_gpu"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_conditions_are_those_of_the_sources_and_no_others(name: str) -> None:
    found = published.anchor(name)
    assert SOURCES[name] == (
        found.gpu,
        found.gpus,
        found.tensor_parallel_size,
        found.num_speculative_tokens,
        found.acceptance_length,
        found.prompt_tokens,
        found.output_tokens,
        found.unit,
    )


def test_curves_are_the_rows_of_their_anchors() -> None:
    assert {(curve.gpu, curve.tp) for curve in published.decode_curves()} == {("GB300", 8), ("GB300", 16)}
    for tp, name in ((16, "P2"), (8, "P3")):
        curve = published.decode_curve("GB300", tp)
        assert curve is not None
        rows = published.anchor(name).rows
        assert curve.tok_s == tuple(row.value for row in rows)
        assert curve.batches == tuple(row.concurrency for row in rows)
        assert all(speedup > 1 for speedup in curve.speedup)
    assert published.decode_curve("B300", 8) is None


def test_acceptance_grows_with_the_drafts_and_ends_where_the_curve_ends() -> None:
    curve = published.acceptance()
    for greedy in (False, True):
        lengths = [curve.length(k, greedy=greedy) for k in range(9)]
        assert lengths[0] == 1.0 and lengths == sorted(lengths)
    assert curve.length(7) == 3.84
    assert curve.length(9) is None and curve.length(-1) is None


@pytest.mark.parametrize(
    ("gpu", "tp", "drafts", "batch", "specialized_ms"),
    [("gb300", 16, 0, 1, 3.90), ("GB300", 8, 0, 3, 7.40), ("gb300", 16, 7, 1, 7.13)],
)
def test_published_step_times(gpu: str, tp: int, drafts: int, batch: float, specialized_ms: float) -> None:
    found = step_anchor(Deployment(gpu=gpu, tensor_parallel_size=tp), drafts, batch)
    assert found is not None and found.specialized_ms == pytest.approx(specialized_ms, abs=0.01)
    assert found.standard_ms > found.specialized_ms


@pytest.mark.parametrize(
    ("gpu", "tp", "drafts", "batch"),
    [
        ("", 16, 0, 1),
        ("b300", 8, 0, 1),
        ("gb300", 4, 0, 1),
        ("gb300", 16, 3, 1),
        ("gb300", 16, 7, 2),
        ("gb300", 8, 0, 65),
    ],
)
def test_no_step_time_where_none_is_published(gpu: str, tp: int, drafts: int, batch: float) -> None:
    assert step_anchor(Deployment(gpu=gpu, tensor_parallel_size=tp), drafts, batch) is None
