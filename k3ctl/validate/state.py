"""The output directory of a validation: what was asked, and every result at the moment it is known.

OUT/raw/plan.json      what was asked, and of which servers (``k3ctl.validation.plan/1``)
OUT/raw/results.jsonl  one result a line, written and synced as soon as it is known
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.errors import UsageError
from k3ctl.validate.record import Result

PLAN_SCHEMA = "k3ctl.validation.plan/1"
PLAN, RESULTS = "plan.json", "results.jsonl"
MAX_PLAN_BYTES = 16 << 20
MAX_RESULTS_BYTES = 256 << 20


@dataclass(frozen=True)
class Plan:
    """What was asked. ``options``: free options, paths as they were given; ``matrix``: axes, empty without one."""

    tiers: tuple[str, ...]
    checks: tuple[str, ...]
    options: Mapping[str, Any]
    matrix: Mapping[str, Sequence[Any]]
    servers: Mapping[str, Mapping[str, Any]]
    created_at: float

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "schema": PLAN_SCHEMA,
            "tiers": list(self.tiers),
            "checks": list(self.checks),
            "options": dict(self.options),
            "matrix": {name: list(values) for name, values in self.matrix.items()},
            "servers": {key: dict(facts) for key, facts in self.servers.items()},
            "created_at": self.created_at,
        }


class State:
    """An output directory."""

    def __init__(self, directory: Path, plan: Plan, results: Sequence[Result]) -> None:
        self.directory = directory
        self.plan = plan
        self._results = list(results)

    @property
    def results(self) -> tuple[Result, ...]:
        """Every result so far, in the order they were found."""
        return tuple(self._results)

    def has(self, check: str, server: str) -> bool:
        """Whether the check is finished on that server."""
        return any((found.check, found.server) == (check, server) for found in self._results)

    def add(self, result: Result) -> None:
        """Keep a result: it is on the disk when this returns."""
        line = json.dumps(_plain(result.json()), ensure_ascii=False, default=str) + "\n"
        with files.append(self.directory / "raw" / RESULTS) as file:
            # an answer may hold halves of characters
            file.write(line.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        self._results.append(result)


def begin(directory: Path, plan: Plan) -> State:
    """A new output directory.

    Raises:
        UsageError: it exists already, or cannot be made.
    """
    if directory.exists():
        raise UsageError(
            f"`{directory}` exists already", hint="go on with `--resume`, or choose another --out"
        )
    try:
        files.private_directory(directory)
        files.private_directory(directory / "raw")
        _write_plan(directory, plan)
    except OSError as error:
        raise UsageError(f"`{directory}` cannot be written: {files.reason(error)}") from error
    return State(directory, plan, ())


def resume(directory: Path, asked: Plan, *, more_servers: bool = False) -> State:
    """Go on in an output directory, for the same request and the same server.

    ``more_servers``: a matrix takes further servers in; each keeps its own results.

    Raises:
        UsageError: there is nothing to go on with, or something differs: every difference is a reason.
    """
    plan, results = load(directory)
    whole_lines(directory / "raw" / RESULTS)
    if (directory / "SHA256SUMS").exists() and not more_servers:
        raise UsageError(f"`{directory}` is finished and sealed", hint="choose another --out to run it again")
    reasons = list(_differences(plan, asked, more_servers=more_servers))
    if reasons:
        raise UsageError(
            f"`{directory}` was begun with something else",
            reasons=reasons,
            hint="what was found there is kept; choose another --out for this server or these settings",
        )
    merged = Plan(
        plan.tiers, plan.checks, plan.options, plan.matrix, {**plan.servers, **asked.servers}, plan.created_at
    )
    _write_plan(directory, merged)
    return State(directory, merged, results)


def load(directory: Path) -> tuple[Plan, list[Result]]:
    """The plan and the results of a directory. A last line that broke off is cut away, so that its check runs again.

    Raises:
        UsageError: it is no such directory, or is damaged.
    """
    where = directory / "raw" / PLAN
    data = files.parse_json(files.text(where, MAX_PLAN_BYTES, "validation plan"), f"`{where}`")
    if not isinstance(data, Mapping) or data.get("schema") != PLAN_SCHEMA:
        raise UsageError(f"`{where}` is no `{PLAN_SCHEMA}`")
    try:
        plan = Plan(
            tuple(data["tiers"]), tuple(data["checks"]), dict(data["options"]), dict(data["matrix"]),
            dict(data["servers"]), float(data["created_at"]),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"`{where}` is damaged: {error}") from error
    path = directory / "raw" / RESULTS
    return plan, list(_results(path)) if path.exists() else []


def whole_lines(path: Path) -> None:
    """Cut a last line that broke off when its writer was killed."""
    if not path.exists():
        return
    data = files.read(path, MAX_RESULTS_BYTES)
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def _results(path: Path) -> Iterator[Result]:
    text = files.text(path, MAX_RESULTS_BYTES, "results")
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):
        where = f"`{path}` line {number}"
        try:
            yield Result.from_json(files.parse_json(line, where))
        except (LookupError, TypeError, ValueError) as error:
            raise UsageError(f"{where} is damaged: {error}") from error


def _plain(value: Any) -> Any:
    """The value as JSON knows it: what is not finite is a word."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write_plan(directory: Path, plan: Plan) -> None:
    path = directory / "raw" / PLAN
    scratch = path.with_suffix(".tmp")
    files.replace(scratch, (json.dumps(plan.json(), indent=1, ensure_ascii=False) + "\n").encode())
    scratch.replace(path)


def _differences(kept: Plan, asked: Plan, *, more_servers: bool) -> Iterator[str]:
    for name in ("tiers", "checks", "options", "matrix"):
        mine, theirs = (plan.json()[name] for plan in (asked, kept))
        if mine != theirs:
            yield f"{name}: {_short(mine)} now, {_short(theirs)} there"
    for key, facts in asked.servers.items():
        if key in kept.servers or more_servers:
            continue
        for before in kept.servers.values():
            yield from fact_differences(before, facts)


def fact_differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What differs between two servers' facts, one sentence each."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from fact_differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"the server's {prefix}{name}: {_short(new)} now, {_short(old)} there"


def _short(value: Any) -> str:
    text = "nothing" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= 90 else f"{text[:87]}…"
