from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3ctl.deployment import Deployment
from k3ctl.facts import published
from k3ctl.loadtest import compare, conditions, gate, summary, view, workload
from tests.loadtest import results

BLOG = "guidellm-8k1k-blogshape-c1-c4-c16.json"


@pytest.fixture
def summarize(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Summary of a recorded report."""

    def make(report: str = BLOG, **kwargs: Any) -> dict[str, Any]:
        kwargs.setdefault("concurrency", (1, 4, 16))
        return summary.summarize(
            results.make(tmp_path / str(len(list(tmp_path.iterdir()))), report, **kwargs) / "raw"
        )

    return make


def scaled(base: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same rows, all faster by ``factor``."""
    out = copy.deepcopy(base)
    for row in out["rows"]:
        row["output_tok_s"] *= factor
        for stat in (row["itl_ms"], row["ttft_ms"]):
            stat["mean"] /= factor
            stat["std"] /= factor
    return out


def test_equal_conditions_stand_side_by_side(summarize: Any) -> None:
    pairs = [pair for pair in compare.against_published(summarize(), ["P8"]) if not pair.reasons]
    assert [(pair.ours.conditions["concurrency"], pair.verdict) for pair in pairs] == [
        (1, "same"),
        (16, "same"),
    ]


def test_a_row_that_failed_a_guard_is_never_compared(summarize: Any) -> None:
    assert all(
        pair.ours.conditions["concurrency"] != 4 for pair in compare.against_published(summarize(), ["P8"])
    )


def test_the_published_c4_row_is_a_range_with_its_reason(summarize: Any) -> None:
    found = summarize("guidellm-8k1k-consistent-c4.json", concurrency=(4,))
    (line,) = view.comparison(compare.against_published(found, ["P8"]))
    assert "383.3 here, 381–417 there, +0.0%" in line
    assert "Little's law" in line


def test_the_older_build_is_beaten_beyond_the_resolution(summarize: Any) -> None:
    pairs = compare.against_published(summarize(), ["P7"])
    assert [pair.verdict for pair in pairs] == ["better", "better"]
    assert pairs[0].ratio == pytest.approx(183.33 / 83.3, abs=1e-2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpus": 16, "tensor_parallel_size": 16}, "GPUs: 16 here, 8 there"),
        ({"gpu": "GB300"}, "GPU: GB300 here, B300 there"),
        ({"gpu": None}, "GPU is not known here (B300 on the other side)"),
        ({"num_speculative_tokens": 7}, "K: 7 here, 8 there"),
        (
            {"acceptance": "synthetic", "synthetic_acceptance_length": 6.0},
            "acceptance: synthetic here, real there",
        ),
        ({"decode_backend": "latency_specialized"}, "path is not known here (stock on the other side)"),
    ],
    ids=["gpus", "product", "unknown", "k", "synthetic", "path"],
)
def test_unequal_conditions_say_why(summarize: Any, change: dict[str, Any], reason: str) -> None:
    target = replace(results.TARGET, deployment=replace(results.TARGET.deployment, **change))
    pairs = compare.against_published(summarize(target=target), ["P8"])
    assert pairs
    assert all(reason in pair.reasons for pair in pairs)
    assert all(pair.ratio is None and pair.verdict == "" for pair in pairs)


def test_other_units_are_never_put_on_one_axis(summarize: Any) -> None:
    lines = view.comparison(compare.against_published(summarize(), ["P10"]))
    assert lines
    assert all("not comparable because" in line for line in lines)
    # the figure itself is taken in the other's unit, so that only real differences are named
    (first, *_) = compare.against_published(summarize(), ["P10"])
    assert first.ours.conditions["unit"] == "total_tok_s_per_gpu"


def test_the_live_screen_gets_only_published_figures_of_equal_conditions() -> None:
    load = workload.load("8k1k")
    found = compare.references(load, results.TARGET.deployment)
    assert found["4"]["output_tok_s"] == [381.0, 417.0]
    assert found["4"]["label"].startswith("P8 · ")
    assert compare.references(load, replace(results.TARGET.deployment, gpus=16)) == {}
    assert compare.references(load, Deployment()) == {}


def test_related_anchors_are_those_of_the_preset_and_of_the_same_lengths(summarize: Any) -> None:
    assert compare.related(summarize()) == ["P7", "P8", "P10", "P11"]


def test_every_anchor_has_every_condition_or_says_null() -> None:
    file = yaml.safe_load(Path(published.__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    for anchor in file["servers"]:
        stated = {n for n, c in conditions.CONDITIONS.items() if c.published and not c.optional}
        missing = stated - {"concurrency"} - set(anchor)
        assert not missing, anchor["id"]
        assert anchor["unit"] in compare.UNITS


def test_the_path_is_what_the_witness_saw() -> None:
    def row(share: float | None) -> dict[str, Any]:
        return {"server": None if share is None else {"path": {"decode_share": share}}}

    assert compare.path_taken("latency_specialized", row(0.99)) == "specialized"
    assert compare.path_taken("latency_specialized", row(0.5)) == "mixed"
    assert compare.path_taken("latency_specialized", row(0.0)) == "stock"
    assert compare.path_taken("latency_specialized", row(None)) is None
    assert compare.path_taken("auto", row(None)) == "stock"


def test_a_gate_passes_the_same_bundle_and_catches_a_slower_one(summarize: Any) -> None:
    base = summarize()
    same, refused = gate.gate(base, base, threshold=0.03)
    assert not refused
    assert {verdict.outcome for verdict in same} <= {"same", "undecided"}
    slower, _ = gate.gate(base, scaled(base, 0.8), threshold=0.03)
    assert {verdict.outcome for verdict in slower} == {"regression"}
    faster, _ = gate.gate(base, scaled(base, 1.3), threshold=0.03)
    assert {verdict.outcome for verdict in faster} == {"improvement"}


@pytest.mark.parametrize(
    ("change", "noise", "outcome"),
    [
        (-0.10, 0.02, "regression"),
        (-0.04, 0.02, "undecided"),
        (-0.02, 0.005, "same"),
        (0.0, 0.06, "undecided"),
        (0.05, 0.02, "improvement"),
        (0.01, 0.02, "same"),
    ],
)
def test_the_outcome_gives_the_resolution_both_ways(change: float, noise: float, outcome: str) -> None:
    assert gate.outcome(change, noise, threshold=0.03) == outcome


def test_a_gate_refuses_unequal_deployments(summarize: Any) -> None:
    other = replace(results.TARGET, deployment=replace(results.TARGET.deployment, tensor_parallel_size=4))
    verdicts, refused = gate.gate(summarize(), summarize(target=other), threshold=0.03)
    assert not verdicts
    assert "TP: 4 here, 8 there" in refused[0].reasons


def test_an_unknown_deployment_compares_with_nothing(summarize: Any) -> None:
    unknown = summarize(target=replace(results.TARGET, deployment=Deployment(), launch=None))
    verdicts, refused = gate.gate(unknown, unknown, threshold=0.03)
    assert not verdicts
    assert {
        f"{label} is not known on either side"
        for label in ("GPU", "model digest", "arguments", "environment", "versions", "machine")
    } <= set(refused[0].reasons)
