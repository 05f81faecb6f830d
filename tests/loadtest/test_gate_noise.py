"""A gate's verdict takes the resolution of both bundles into account, for every gated metric."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from k3ctl.loadtest import gate, summary
from tests.loadtest import results

METRICS = ("output_tok_s", "itl_ms", "ttft_ms")


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    """A recorded summary whose numbers are all but exact."""
    path = results.make(tmp_path / "base", "guidellm-8k1k-blogshape-c1-c4-c16.json", concurrency=(1, 4, 16))
    return resolved(summary.summarize(path / "raw"), 1e-6)


def resolved(base: dict[str, Any], share: float) -> dict[str, Any]:
    """The same numbers, known to about ``share`` of themselves."""
    out = copy.deepcopy(base)
    for row in out["rows"]:
        row["resolution_share"] = share
        for stat in (row["itl_ms"], row["ttft_ms"]):
            stat["std"] = share * stat["mean"] * stat["count"] ** 0.5 / 2
    return out


def slowed(base: dict[str, Any], share: float) -> dict[str, Any]:
    out = copy.deepcopy(base)
    for row in out["rows"]:
        row["output_tok_s"] *= 1 - share
        for stat in (row["itl_ms"], row["ttft_ms"]):
            stat["mean"] /= 1 - share
            stat["std"] /= 1 - share
    return out


def outcomes(base: dict[str, Any], new: dict[str, Any]) -> dict[str, set[str]]:
    verdicts, refused = gate.gate(base, new, threshold=0.03)
    assert not refused
    assert {v.metric for v in verdicts} == set(METRICS)
    return {metric: {v.outcome for v in verdicts if v.metric == metric} for metric in METRICS}


def everywhere(outcome: str) -> dict[str, set[str]]:
    return {metric: {outcome} for metric in METRICS}


def test_a_sharp_regression_is_one(base: dict[str, Any]) -> None:
    assert outcomes(base, slowed(base, 0.05)) == everywhere("regression")
    assert outcomes(base, slowed(base, 0.02)) == everywhere("same")


@pytest.mark.parametrize("noisy", ["base", "new", "both"])
def test_the_noise_of_either_side_makes_it_undecided(base: dict[str, Any], noisy: str) -> None:
    new = slowed(base, 0.05)
    pair = (resolved(base, 0.2) if noisy != "new" else base), (resolved(new, 0.2) if noisy != "base" else new)
    assert outcomes(*pair) == everywhere("undecided")


@pytest.mark.parametrize("noisy", ["base", "new"])
def test_equal_numbers_under_noise_prove_no_equality(base: dict[str, Any], noisy: str) -> None:
    rough = resolved(base, 0.2)
    pair = (rough, base) if noisy == "base" else (base, rough)
    assert outcomes(*pair) == everywhere("undecided")


def test_noise_is_not_doubled_either(base: dict[str, Any]) -> None:
    """A change well beyond threshold and noise together stays a regression."""
    assert outcomes(resolved(base, 0.04), resolved(slowed(base, 0.25), 0.04)) == everywhere("regression")
