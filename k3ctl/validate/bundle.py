"""A validation as a bundle: what ``k3ctl.bundle`` does for every kind, and what is a validation's own.

raw/plan.json, raw/results.jsonl   see ``state``
servers/KEY/                       of every server that answered: run record, profile, machine, end of its log
report.md, report.html             the results and the coverage, for people
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k3ctl.bundle import parts, seal, verify
from k3ctl.bundle.kind import Kind
from k3ctl.bundle.parts import Enclosed, Surroundings
from k3ctl.validate import coverage, html, matrix, report, state

SCHEMA = "k3ctl.validation/1"
SUMMARY = "k3ctl.validation.summary/1"
REPORTS: Mapping[str, Any] = {"report.md": report.markdown, "report.html": html.page}


def summarize(raw: Path) -> dict[str, Any]:
    """The summary of a validation, from its raw files alone."""
    plan, results = state.load(raw.parent)
    found = coverage.of(results, [(name, key) for key in plan.servers for name in plan.checks])
    empty = matrix.holes(plan.matrix, plan.servers, results)
    ends = [result.started_at + result.seconds for result in results]
    return {
        "schema": SUMMARY,
        "tiers": list(plan.tiers),
        "matrix": plan.json()["matrix"],
        "servers": dict(plan.servers),
        "started_at": plan.created_at,
        "ended_at": max(ends, default=plan.created_at),
        "counts": found.counts,
        "good": found.good and not empty,
        "statement": found.statement + (f", {len(empty)} cells of the matrix not filled" if empty else ""),
        "holes": [*found.holes, *empty],
        "results": [result.json() for result in results],
    }


def validity(summary: Mapping[str, Any]) -> dict[str, Any]:
    """``valid`` when something passed and nothing is failed, void, unknown or missing."""
    bad = [result for result in summary["results"] if result["outcome"] in {"failed", "void", "unknown"}]
    reasons = [f"{result['check']}: {result['outcome']} ({result['statement']})" for result in bad]
    reasons += [hole for hole in summary["holes"] if coverage.unfinished(hole)]
    if not summary["counts"]["passed"]:
        reasons.append("no check passed")
    flags = {
        "holes": bool(summary["holes"]),
        "random_weights": any(facts.get("random_weights") for facts in summary["servers"].values()),
    }
    return {
        "status": "invalid" if reasons else "valid",
        "reasons": reasons,
        "flags": [name for name, on in flags.items() if on],
    }


VALIDATION = Kind(SCHEMA, summarize, validity)
"""The bundle of a validation."""


def write(
    directory: Path, around: Mapping[str, Surroundings], *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Complete and seal the bundle in ``directory``; ``around``: of the servers that answered now, by key.

    A bundle that was sealed before (a matrix with one more server) is sealed anew.
    """
    for name in (seal.SUMS, seal.STATEMENT, "manifest.json", "summary.json", *REPORTS):
        (directory / name).unlink(missing_ok=True)
    hide = parts.redactor(environment)
    logs = [
        parts.enclose(directory / "servers" / key, each, hide, environment) for key, each in around.items()
    ]
    redactions = parts.hidden(directory, hide)
    for name, count in (
        (f"servers/{key}/{n}", c)
        for key, log in zip(around, logs, strict=True)
        for n, c in log.redactions.items()
    ):
        redactions[name] = redactions.get(name, 0) + count
    summary = summarize(directory / "raw")
    for name, render in REPORTS.items():
        (directory / name).write_text(render(summary, directory.name), encoding="utf-8")
    engine_log = {key: log.engine_log for key, log in zip(around, logs, strict=True) if log.engine_log}
    said = {
        "created_at": summary["ended_at"],
        "tiers": summary["tiers"],
        "model": _common(summary["servers"], "model"),
        "servers": {key: _told(facts) for key, facts in summary["servers"].items()},
    }
    return parts.finish(directory, VALIDATION, summary, Enclosed(engine_log or None, redactions), said)


def rendered(directory: Path, name: str) -> str:
    """A report of a bundle, by one of the names of ``REPORTS``; one that does not verify says so on top.

    Raises:
        UsageError: it is no bundle of a validation.
    """
    sound = verify.passed(verify.verify(directory, VALIDATION))
    text: str = REPORTS[name](
        summarize(directory / "raw"), ("" if sound else "DOES NOT VERIFY · ") + directory.name
    )
    return text


def _common(servers: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    values: Sequence[Any] = list({str(facts.get(name)) for facts in servers.values()})
    return values[0] if len(values) == 1 else None


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the statement says of a server."""
    names = ("model", "gpu", "gpus", "parallel", "draft_tokens", "backend", "vllm", "runtime", "profile")
    return {name: facts.get(name) for name in names}
