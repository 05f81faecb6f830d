"""Made-up validations on disk: a plan, results, and the bundle of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3ctl.bundle.parts import Surroundings
from k3ctl.validate import bundle, matrix, state
from k3ctl.validate.facts import Facts
from k3ctl.validate.record import Outcome, Result
from k3ctl.validate.state import Plan

FACTS = Facts(
    "kimi-k3", max_model_len=4096, draft_tokens=7, query_len=8, max_rows=64, backend="latency_specialized",
    platform="cuda", gpu="GB300", gpus=16, parallel=(16, 1, 1), vllm="0.33.0", runtime="0.1.0",
    profile={"name": "gb300-tp16", "sha256": "a" * 64},
    launch={"model_digest": "digest", "arguments": {"max_model_len": 4096}, "versions": {"vllm": "0.33.0"}},
)  # fmt: skip
INTERVAL = {
    "claimed": "specialized",
    "on_path": 40.0,
    "decode_steps": 40.0,
    "standing": "on the claimed path",
}


def result(
    check: str, outcome: Outcome = Outcome.PASSED, statement: str = "fine", server: str = FACTS.key
) -> Result:
    seen = None if outcome is Outcome.NOT_RUN else INTERVAL
    return Result(check, "what it shows", outcome, statement, {"n": 3}, seen, 1.7e9, 2.0, server)


def made(
    directory: Path,
    results: Sequence[Result] | None = None,
    *,
    facts: Facts = FACTS,
    planned: Sequence[str] | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    seal: bool = True,
) -> Path:
    """A validation of one server; ``planned``: names of its checks, those of the results by default."""
    found = [result("canary.floods"), result("features.seeds")] if results is None else list(results)
    names = tuple(planned if planned is not None else [r.check for r in found])
    plan = Plan(("canary",), names, {}, axes or {}, {facts.key: facts.json()}, 1.7e9)
    kept = state.begin(directory, plan)
    for each in found:
        kept.add(replace(each, server=facts.key))
    if seal:
        bundle.write(directory, {facts.key: Surroundings()}, environment={})
    return directory


def cells(axes: Mapping[str, Sequence[Any]]) -> list[Result]:
    return [result(matrix.name(b, c)) for b in axes["batch"] for c in axes["context"]]
