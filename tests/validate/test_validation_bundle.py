"""A validation as a bundle: sealed, recomputed, rendered with its holes, gated against another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.bundle import verify
from k3ctl.bundle.parts import Surroundings
from k3ctl.cli import main
from k3ctl.errors import UsageError
from k3ctl.validate import bundle, coverage, gate, matrix, report, state
from k3ctl.validate.record import Outcome
from k3ctl.validate.state import Plan
from tests.bundle.planted import ENVIRONMENT
from tests.validate.results import FACTS, cells, made, result

AXES = {"batch": [1, 8], "context": [128, 4096], "drafts": [7], "parallel": ["TP16"]}
BAD = (Outcome.FAILED, Outcome.VOID, Outcome.UNKNOWN)


@pytest.fixture
def k3ctl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*argv: object) -> tuple[int, dict[str, Any]]:
        code = main([*map(str, argv), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def summary(directory: Path) -> dict[str, Any]:
    return bundle.summarize(directory / "raw")


def test_a_bundle_verifies_and_packs_as_any_other(tmp_path: Path, k3ctl: Any) -> None:
    directory = made(tmp_path / "v")
    assert k3ctl("bundle", "verify", directory)[0] == 0
    assert k3ctl("bundle", "pack", directory, "--out", tmp_path / "v.k3b.tar.gz")[0] == 0
    assert k3ctl("bundle", "verify", tmp_path / "v.k3b.tar.gz")[0] == 0
    code, told = k3ctl("bundle", "report", tmp_path / "v.k3b.tar.gz")
    assert code == 0 and told["data"]["text"].startswith("# Validation of kimi-k3: 2 passed")


@pytest.mark.parametrize(
    "name", ["raw/results.jsonl", "raw/plan.json", "summary.json", "manifest.json", "report.md"]
)
def test_any_changed_byte_is_found(tmp_path: Path, k3ctl: Any, name: str) -> None:
    directory = made(tmp_path / "v", [result("canary.floods", Outcome.FAILED), result("features.seeds")])
    path = directory / name
    path.write_text(path.read_text().replace("failed", "passed").replace("kimi", "kimj"))
    assert k3ctl("bundle", "verify", directory)[0] == 1
    assert k3ctl("gate", directory, directory)[0] == 1
    assert "DOES NOT VERIFY" in bundle.rendered(directory, "report.md")


@pytest.mark.parametrize("outcome", BAD)
def test_one_bad_result_among_good_ones_is_not_valid(tmp_path: Path, outcome: Outcome) -> None:
    directory = made(tmp_path / "v", [result("canary.a"), result("canary.b", outcome, "off the path")])
    found = summary(directory)
    assert not found["good"]
    assert bundle.validity(found)["status"] == "invalid"
    assert "off the path" in bundle.validity(found)["reasons"][0]


def test_nothing_passed_is_not_valid_and_what_was_not_run_is_a_hole(tmp_path: Path) -> None:
    idle = summary(made(tmp_path / "idle", [result("canary.a", Outcome.NOT_RUN, "no parser")]))
    assert not idle["good"] and bundle.validity(idle)["status"] == "invalid"
    some = summary(
        made(tmp_path / "some", [result("canary.a", Outcome.NOT_RUN, "no parser"), result("canary.b")])
    )
    assert some["good"] and some["holes"] == ["not shown: canary.a (no parser)"]
    assert bundle.validity(some) == {"status": "valid", "reasons": [], "flags": ["holes"]}


def test_a_check_that_is_missing_is_no_pass(tmp_path: Path) -> None:
    found = summary(made(tmp_path / "v", [result("canary.a")], planned=["canary.a", "canary.b"]))
    assert not found["good"] and bundle.validity(found)["status"] == "invalid"
    assert "1 missing" in found["statement"]


def test_reports_show_outcomes_holes_and_the_matrix_and_nothing_is_markup(tmp_path: Path) -> None:
    nasty = "said <script>alert(1)</script> | and `more`"
    found = [result("canary.a", Outcome.FAILED, nasty), *cells(AXES)[1:]]
    directory = made(tmp_path / "v", found, axes=AXES, planned=[r.check for r in [*found, *cells(AXES)[:1]]])
    markdown, page = ((directory / name).read_text() for name in bundle.REPORTS)
    for text in (markdown, page):
        assert "<script" not in text
        assert "Not good" in text and "batch 8" in text and "hole" in text
        assert "batch 1, 128 tokens, K=7, TP16" in text
    assert "\\|" in markdown
    assert page.count('class="o passed"') >= 3
    assert "http" not in page


def test_a_matrix_takes_further_servers_in_and_keeps_its_holes(tmp_path: Path) -> None:
    axes = {**AXES, "drafts": [0, 7]}
    names = tuple(r.check for r in cells(axes))
    directory = made(tmp_path / "v", cells(axes), axes=axes, planned=names)
    assert len([hole for hole in summary(directory)["holes"] if "K=0" in hole]) == 4
    assert not summary(directory)["good"]
    plain = replace(FACTS, draft_tokens=0, query_len=1)
    plan = Plan(("canary",), names, {}, axes, {plain.key: plain.json()}, 1.8e9)
    with pytest.raises(UsageError, match="finished and sealed"):
        state.resume(directory, plan)
    kept = state.resume(directory, plan, more_servers=True)
    for each in cells(axes):
        kept.add(replace(each, server=plain.key))
    bundle.write(directory, {plain.key: Surroundings()}, environment={})
    assert summary(directory)["good"] and not summary(directory)["holes"]
    assert verify.passed(verify.verify(directory, bundle.VALIDATION))
    assert [grid.title for grid in report.grids(summary(directory))] == ["K=0, TP16", "K=7, TP16"]


def test_secrets_in_answers_and_arguments_do_not_reach_a_bundle(tmp_path: Path) -> None:
    facts = replace(FACTS, launch={**FACTS.launch, "arguments": {"api_key": "hf_PlantedTokenPlantedToken"}})
    told = result("canary.a", Outcome.FAILED, "said planted-api-key-value")
    directory = made(tmp_path / "v", [told], facts=facts, seal=False)
    bundle.write(directory, {facts.key: Surroundings()}, environment=ENVIRONMENT)
    for path in directory.rglob("*"):
        if path.is_file():
            assert "Planted" not in path.read_text() and "planted-api" not in path.read_text(), path
    assert verify.passed(verify.verify(directory, bundle.VALIDATION))


@pytest.mark.parametrize("now", [*BAD, Outcome.NOT_RUN])
def test_what_passed_must_pass(tmp_path: Path, k3ctl: Any, now: Outcome) -> None:
    base = made(tmp_path / "base")
    new = made(tmp_path / "new", [result("features.seeds"), result("canary.floods", now, "changed")])
    code, told = k3ctl("gate", base, new)
    assert code == 1
    assert [v["check"] for v in told["data"]["verdicts"] if v["outcome"] == "regression"] == ["canary.floods"]
    code, told = k3ctl("gate", new, base)
    assert code == 0
    assert [v["check"] for v in told["data"]["verdicts"] if v["outcome"] == "improvement"] == [
        "canary.floods"
    ]


def test_a_missing_check_fails_and_a_new_one_only_when_it_is_bad(tmp_path: Path, k3ctl: Any) -> None:
    both = made(tmp_path / "both")
    one = made(tmp_path / "one", [result("canary.floods")])
    assert k3ctl("gate", both, one)[0] == 1
    assert k3ctl("gate", one, both)[0] == 0
    bad = made(tmp_path / "bad", [result("canary.floods"), result("features.x", Outcome.FAILED)])
    assert k3ctl("gate", one, bad)[0] == 1


def test_strict_wants_every_check_to_pass(tmp_path: Path, k3ctl: Any) -> None:
    some = made(tmp_path / "some", [result("canary.a"), result("canary.b", Outcome.NOT_RUN, "why")])
    assert k3ctl("gate", some, some)[0] == 0
    assert k3ctl("gate", some, some, "--strict")[0] == 1


@pytest.mark.parametrize("digest", ["another", None])
def test_another_or_an_unknown_model_is_refused_unless_it_is_meant(
    tmp_path: Path, k3ctl: Any, digest: Any
) -> None:
    base = made(tmp_path / "base")
    new = made(tmp_path / "new", facts=replace(FACTS, launch={**FACTS.launch, "model_digest": digest}))
    code, told = k3ctl("gate", base, new)
    assert code == 1 and "model_digest" in told["error"]["reasons"][0]
    assert k3ctl("gate", base, new, "--vary", "model_digest")[0] == 0
    assert k3ctl("gate", base, new, "--vary", "mdoel_digest")[0] == 2


def test_what_else_changed_is_told_and_fails_nothing(tmp_path: Path, k3ctl: Any) -> None:
    base = made(tmp_path / "base")
    new = made(tmp_path / "new", facts=replace(FACTS, vllm="0.34.0", draft_tokens=3))
    code, told = k3ctl("gate", base, new)
    assert code == 0
    assert any("vllm" in text for text in told["data"]["changes"])


def test_a_validation_is_not_gated_against_a_benchmark(tmp_path: Path, k3ctl: Any, make_bundle: Any) -> None:
    code, told = k3ctl("gate", make_bundle(), made(tmp_path / "v"))
    assert code == 2 and "not of one kind" in told["error"]["message"]


def test_a_gate_needs_something_that_passed(tmp_path: Path, k3ctl: Any) -> None:
    bad = made(tmp_path / "bad", [result("canary.a", Outcome.VOID)])
    assert k3ctl("gate", bad, bad)[0] == 1


def test_order_and_names_of_results_change_no_verdict(tmp_path: Path) -> None:
    found = [result("canary.a"), result("canary.b", Outcome.VOID), result("canary.c", Outcome.NOT_RUN)]
    one, other = coverage.of(found), coverage.of(found[::-1])
    assert (one.counts, one.good, set(one.holes)) == (other.counts, other.good, set(other.holes))
    renamed = coverage.of([replace(each, check=f"x.{each.check}") for each in found])
    assert renamed.counts == one.counts
    assert not coverage.of([]).good


@pytest.mark.parametrize(
    ("sizes", "told"), [((8, 1, 1), "TP8"), ((8, 2, 1), "TP8-PP2"), ((8, 2, 4), "TP8-PP2-DP4"), (None, "")]
)
def test_layouts(sizes: Any, told: str) -> None:
    assert matrix.layout(sizes) == told


def test_axes_follow_the_server_where_they_are_not_given() -> None:
    found = matrix.axes(FACTS, {})
    assert found["context"] == [128, 512, 4096]
    assert (found["drafts"], found["parallel"]) == ([7], ["TP16"])
    with pytest.raises(UsageError, match="no batch"):
        matrix.axes(FACTS, {"batch": [0]})


def test_verdicts_pair_single_servers_whatever_their_drafts(tmp_path: Path) -> None:
    one = summary(made(tmp_path / "one"))
    other = summary(made(tmp_path / "other", facts=replace(FACTS, draft_tokens=0)))
    assert {verdict.outcome for verdict in gate.compare(one, other)} == {"same"}
