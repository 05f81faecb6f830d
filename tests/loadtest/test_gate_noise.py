"""Verdicts take the resolution of both numbers into account, for every metric; an unknown one decides nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ctl.loadtest import compare, gate, summary, view
from tests.loadtest import results

METRICS = ("output_tok_s", "itl_ms", "ttft_ms")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recorded summary whose numbers are all but exact."""
    path = results.make(
        tmp_path_factory.mktemp("x") / "base",
        "guidellm-8k1k-blogshape-c1-c4-c16.json",
        concurrency=(1, 4, 16),
    )
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


def unresolved(base: dict[str, Any], how: str) -> dict[str, Any]:
    """The same numbers, and nobody can say how far they may be off."""
    out = copy.deepcopy(base)
    for row in out["rows"]:
        row["resolution_share"], row["interval_share"] = {
            "nothing known": (None, None),
            "no interval": (row["resolution_share"], None),
            "no number": (float("nan"), 0.01),
        }[how]
        for stat in (row["itl_ms"], row["ttft_ms"]):
            stat.update(
                {"no interval": {"count": 1}, "nothing known": {"std": None}}.get(how, {"std": float("nan")})
            )
    return out


@pytest.mark.parametrize("how", ["nothing known", "no interval", "no number"])
@pytest.mark.parametrize("side", ["base", "new", "base and new"])
@pytest.mark.parametrize("change", [0.0, 0.5, -0.5])
def test_an_unknown_resolution_is_no_proof_of_anything(
    base: dict[str, Any], how: str, side: str, change: float
) -> None:
    before, after = base, slowed(base, change)
    before = unresolved(before, how) if "base" in side else before
    after = unresolved(after, how) if "new" in side else after
    verdicts, refused = gate.gate(before, after, threshold=0.03)
    assert not verdicts
    assert {reason for pair in refused for reason in pair.reasons} == {
        f"{metric} at c={c}: how far it may be off is not known ({side})"
        for metric in METRICS
        for c in (1, 16)
    }
    for metric in METRICS:
        pairs = compare.against_summary(after, before, source="base", unit=metric)
        assert [pair.verdict for pair in pairs] == ["undecided"] * 2
        assert metric == "ttft_ms" or all("± unknown undecided" in line for line in view.comparison(pairs))


POSITIVE = st.floats(1e-3, 1e6)
NOISE = st.one_of(st.none(), st.floats(), st.floats(0, 0.5))


def pair(ours: float, other: float, noise: tuple[float | None, float | None]) -> compare.Comparison:
    unit = {"unit": "output_tok_s"}
    points = [
        compare.Point("x", unit, value, value, value, share)
        for value, share in zip((ours, other), noise, strict=True)
    ]
    return compare.Comparison(points[0], points[1], ())


@given(POSITIVE, POSITIVE, NOISE, NOISE)
def test_better_and_worse_need_two_resolutions_and_a_difference_beyond_them(
    ours: float, other: float, mine: float | None, theirs: float | None
) -> None:
    verdict = pair(ours, other, (mine, theirs)).verdict
    known = all(share is not None and 0 <= share < float("inf") for share in (mine, theirs))
    assert (verdict == "undecided") == (not known)
    if verdict in ("better", "worse"):
        assert abs(ours / other - 1) > max(mine or 0, theirs or 0)
        assert (verdict == "better") == (ours > other)
    for less in ((None, theirs), (mine, None), (float("nan"), theirs), (mine, float("inf"))):
        assert pair(ours, other, less).verdict == "undecided"


@given(POSITIVE, POSITIVE, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_noise_never_makes_a_difference(
    ours: float, other: float, mine: float, theirs: float, more: float
) -> None:
    if pair(ours, other, (mine, theirs)).verdict == "same":
        assert pair(ours, other, (mine + more, theirs)).verdict == "same"
        assert pair(ours, other, (mine, theirs + more)).verdict == "same"
