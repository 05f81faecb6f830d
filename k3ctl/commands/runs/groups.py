"""Groups of nodes in ``ps``, ``logs``, ``stop`` and ``triage``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl import output
from k3ctl.engine import rundir
from k3ctl.engine.rundir import Run
from k3ctl.errors import EngineError, ExitCode, UsageError
from k3ctl.output import CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.rack.record import Group
    from k3ctl.rack.remote import Seen
    from k3ctl.triage.scan import Report

Asked = tuple["Group", list["Seen"]]
"""A group and what its nodes say; nothing for one that is known to be over."""
MOST_LINES = 1_000_000
"""Of each node's log when all are read as one; the last 4 MiB come over."""


def named(name: str) -> Run | Group:
    """The run of this machine, else the group, with this name. Raises UsageError."""
    from k3ctl.rack import record

    try:
        return rundir.find(name)
    except UsageError:
        group = record.find(name)
        if group is None:
            raise
        return group


def chosen(name: str | None) -> Run | Group:
    """The one that is named, else the only one that lives. Raises UsageError."""
    from k3ctl.rack import record
    from k3ctl.server import which

    if name:
        return named(name)
    groups = record.live()
    members = {member.run for group in groups for member in group.members}
    alone = [run.id for run in rundir.all_runs() if run.live() and run.id not in members]
    if not groups:
        return which.only()
    if len(groups) + len(alone) > 1:
        raise UsageError(
            f"{len(groups) + len(alone)} runs and groups are there: name one",
            reasons=[*(group.id for group in groups), *alone],
        )
    return groups[0]


def everything() -> list[Run | Group]:
    """All that live: groups, and runs of this machine that are in none of them."""
    from k3ctl.rack import record

    groups = record.live()
    members = {member.run for group in groups for member in group.members}
    runs = [run for run in rundir.all_runs() if run.live() or run.status() == "lost"]
    return [*groups, *(run for run in runs if run.id not in members)]


def asked(every: bool) -> list[Asked]:
    """The groups that may live, and what their nodes say; with ``every`` those that have ended too."""
    from k3ctl.rack import record, remote

    found: list[Asked] = []
    for group in record.every():
        if group.over:
            found += [(group, [])] if every else []
            continue
        seen = remote.status(group)
        now = remote.settled(group, seen)
        if every or not now.over:
            found.append((now, seen))
    return found


def tables(groups: Sequence[Asked]) -> list[Table]:
    """One table of groups, and one of their nodes."""
    from k3ctl.engine.stages import duration
    from k3ctl.rack import remote

    if not groups:
        return []
    rows, nodes = [], []
    for group, seen in groups:
        up = sum(one.state == "ready" for one in seen)
        age = duration((group.ended_at or time.time()) - group.started_at)
        count = f"{up} of {len(group.members)}" if seen else str(len(group.members))
        rows.append([group.id, group.profile, remote.state(group, seen), group.url, count, age, group.reason])
        nodes += [
            [group.id, one.member.host, str(one.member.rank), one.state, one.member.run, one.reason]
            for one in seen
        ]
    columns = ["group", "profile", "state", "url", "ready", "age", "reason"]
    out = [Table(columns, rows, right=frozenset({"age"}))]
    if nodes:
        out.append(Table(["of group", "node", "rank", "state", "run there", "reason"], nodes))
    return out


def data(groups: Sequence[Asked]) -> list[dict[str, Any]]:
    """The groups for scripts."""
    from k3ctl.rack import remote

    return [remote.as_data(group, seen) for group, seen in groups]


def logs(group: Group, lines: int, follow: bool) -> CommandResult:
    """The ends of all nodes' logs, each line after its node's name."""
    from k3ctl.rack import remote

    width = max(map(len, group.hosts))
    if follow:
        for host, line in remote.follow(group, lines):
            output.write_text(f"{host:{width}} | {line}")
        return CommandResult("k3ctl.logs-group/1", {"group": group.id, "logs": {}}, [])
    found = list(remote.logs(group, lines))
    shown = [f"{host:{width}} | {line}" for host, text, _ in found for line in text or ()]
    missing = [f"{host}: no log: {why}" for host, text, why in found if text is None]
    if len(missing) == len(found):
        raise EngineError(f"no node of `{group.id}` gave its log", reasons=missing)
    kept = {host: text for host, text, _ in found if text is not None}
    code = ExitCode.FAILED if missing else ExitCode.OK
    result = {"group": group.id, "logs": kept}
    return CommandResult("k3ctl.logs-group/1", result, [Lines(shown)], code, missing)


def stop(groups: Sequence[Group]) -> list[Asked]:
    """Stop groups on all of their nodes."""
    from k3ctl.rack import remote

    return [remote.stop(group) for group in groups]


def stop_lines(groups: Sequence[Asked]) -> list[str]:
    """What became of every node."""
    return [
        f"{group.id} {one.member.host}: {one.state}{f' ({one.reason})' if one.reason else ''}"
        for group, seen in groups
        for one in seen
    ]


def all_over(groups: Sequence[Asked]) -> bool:
    """Whether every node has said that its run is over."""
    return all(one.state in rundir.FINAL_STATES for _, seen in groups for one in seen)


def scan(group: Group, notes: list[str]) -> Report:
    """All nodes' logs as one story: the ones kept at a failure, else those that the nodes give now."""
    from k3ctl.rack import remote
    from k3ctl.triage import scan as triage

    kept = {path.stem: path for path in sorted((group.dir / "logs").glob("*.log"))}
    with tempfile.TemporaryDirectory(prefix="k3ctl-logs-") as folder:
        for host, text, why in remote.logs(group, MOST_LINES):
            if text is not None:
                kept[host] = Path(folder) / f"{host.replace('/', '_')}.log"
                kept[host].write_text("\n".join(text) + "\n")
            elif host not in kept:
                notes.append(f"the log of {host} was not read: {why}")
        if not kept:
            raise UsageError(f"no node of `{group.id}` gave its log", reasons=notes)
        return triage.scan([kept[host] for host in group.hosts if host in kept])
