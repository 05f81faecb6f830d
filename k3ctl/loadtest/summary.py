"""``raw/`` → summary: one pure function of files, so that anyone can recompute what a bundle claims.

The summary is plain JSON (``k3ctl.bench/1``). ``DEFINITIONS`` changes whenever a formula does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k3ctl.errors import UsageError
from k3ctl.loadtest import aiperf, clientcpu, conditions, power, ranks, rows, sampler, tokens
from k3ctl.loadtest import events as ev
from k3ctl.loadtest.judged import Rung, Watched, judge_row
from k3ctl.loadtest.rows import Row
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Workload

SCHEMA = "k3ctl.bench/1"
DEFINITIONS = 2
"""Version of the metric definitions in docs/reference/bench.md."""


def summarize(raw: Path) -> dict[str, Any]:
    """Recompute the summary of a raw directory.

    Raises:
        UsageError: ``ask.json`` or ``outcome.json`` is missing or damaged.
    """
    ask, outcome = _json(raw / "ask.json"), _json(raw / "outcome.json")
    workload, target = Workload.from_dict(ask["workload"]), Target.from_dict(ask["target"])
    events = ev.read(raw / "events.jsonl")
    found = client_rows(raw, ask["runs"], events)
    watched = Watched(
        sampler.read(raw),
        tokens.mismatch(raw, events),
        power.read(raw),
        clientcpu.read(raw),
        ranks.of_table(_table(raw / "witness-end.json")),
    )
    resets = outcome.get("prefix_resets") or []
    rows_ = [judge_row(one.row, workload, target, watched, _rung(one, resets)) for one in found]
    return {
        "schema": SCHEMA,
        "definitions": DEFINITIONS,
        "preset": workload.preset,
        "deviations": list(workload.deviations),
        "deployment": target.deployment.json(),
        "model": target.model,
        "conditions": conditions.of_bundle(ask, DEFINITIONS),
        "asked": {
            "prompt_tokens": workload.prompt_tokens + (workload.prefix_tokens or 0),
            "output_tokens": workload.output_tokens,
            "concurrency": list(workload.concurrency),
            "anchors": list(workload.anchors),
        },
        "client": {"tool": ask["client"], "live": _live(events)},
        "driver": workload.driver,
        "started_at": outcome["started_at"],
        "ended_at": outcome["ended_at"],
        "partial": any(one.row.partial for one in found) or bool(outcome["interrupted"]),
        "server_answers": bool(outcome["server_answers"]),
        "synthetic": any(row["synthetic"] for row in rows_),
        "valid": bool(rows_)
        and all(row["valid"] for row in rows_)
        and len(rows_) == len(workload.concurrency)
        and bool(outcome["server_answers"]),
        "stalled": list(outcome.get("stalled") or ()),
        "ranks": watched.ranks,
        "missing_steps": [c for c in workload.concurrency if c not in [row["concurrency"] for row in rows_]],
        "rows": rows_,
    }


@dataclass(frozen=True)
class ClientRow:
    """A row, the number of the client run that it is from, and that run's own events."""

    row: Row
    run: int
    events: Sequence[ev.Event]


def client_rows(raw: Path, runs: Sequence[Mapping[str, Any]], events: Sequence[ev.Event]) -> list[ClientRow]:
    """Rows from the clients' reports; a run without a report gives what its event log holds, marked partial."""
    found: list[ClientRow] = []
    for index, run in enumerate(runs):
        logged = _logged(raw, run, events, index)
        made = _report_rows(raw, run, logged) or rows.from_events(logged)
        found += [ClientRow(row, index, logged) for row in made]
    return found


def _report_rows(raw: Path, run: Mapping[str, Any], logged: Sequence[ev.Event]) -> list[Row]:
    if run["tool"] == "aiperf":
        report = raw / run["report"] / aiperf.RESULT
        if not report.is_file():
            return []
        row = aiperf.row(_json(report), sessions=run["sessions"])
        start, end = aiperf.window(logged) or (None, None)
        return [replace(row, measure_start=start, measure_end=end)]
    report = raw / run["report"]
    return rows.from_guidellm(_json(report), sessions=run["sessions"]) if report.is_file() else []


def _rung(one: ClientRow, resets: Sequence[str]) -> Rung:
    return Rung(
        requests=one.events,
        prefix_reset=resets[one.run] if one.run < len(resets) else None,
        first=one.run == 0,
    )


def _logged(raw: Path, run: Mapping[str, Any], events: Sequence[ev.Event], index: int) -> list[ev.Event]:
    """Events of the run's own process: those after its ``client_start``."""
    if run["tool"] == "aiperf":
        return list(aiperf.Tail(raw / run["report"], run["sessions"])())
    starts = [n for n, event in enumerate(events) if event["kind"] == "client_start"] or [0]
    if index >= len(starts):
        return []
    end = starts[index + 1] if index + 1 < len(starts) else len(events)
    return list(events[starts[index] : end])


def _live(events: Sequence[ev.Event]) -> bool:
    return bool(events) and not any(event["kind"] == "seam_missing" for event in events)


def _table(path: Path) -> Mapping[str, Any] | None:
    """The witness table at the end; None without one, or when it is damaged."""
    try:
        return dict(_json(path)) if path.is_file() else None
    except UsageError:
        return None


def _json(path: Path) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"`{path}` cannot be read: {error}", hint="is this a k3ctl result directory?"
        ) from error
    if not isinstance(value, Mapping):
        raise UsageError(f"`{path}` is not a JSON object")
    return value
