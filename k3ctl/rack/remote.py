"""Later commands, sent to every node of a group: state, logs, stop. A node that does not answer is *unknown*."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from k3ctl.host import ssh
from k3ctl.host.shell import TIMED_OUT, Output, Run, run
from k3ctl.rack import record
from k3ctl.rack.record import FINAL_STATES, Group, Member

ANSWER_S = 20.0
"""Longest wait for a node's answer about its state."""
STOP_S = 100.0
"""A stop that has to kill the supervisor takes up to 80 s."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Seen:
    """One node's run as it is now. ``state`` is ``unknown`` for a node that did not answer."""

    member: Member
    state: str
    reason: str = ""


def status(group: Group, exec_: Run = run) -> list[Seen]:
    """Ask every node how its run is."""
    return _each(group, lambda member: _status(group, member, exec_))


def stop(group: Group, exec_: Run = run) -> tuple[Group, list[Seen]]:
    """Stop the run of every node, all at once; the record says ``stopped`` once all of them have said so."""
    seen = _each(group, lambda member: _stop(group, member, exec_))
    if all(one.state in FINAL_STATES for one in seen):
        group = record.ended(group, "stopped", "asked to stop")
    return group, seen


def settled(group: Group, seen: list[Seen]) -> Group:
    """The group with its end noted, when all nodes say that it is over and nobody leads it any more."""
    if group.over or group.led or not all(one.state in (*FINAL_STATES, "lost") for one in seen):
        return group
    failed = [one for one in seen if one.state != "stopped"]
    reason = next((f"{one.member.host}: {one.reason or one.state}" for one in failed or seen), "")
    return record.ended(group, "failed" if failed else "stopped", reason)


def state(group: Group, seen: list[Seen]) -> str:
    """The group's state in a word, from its nodes'."""
    if group.over:
        return group.state
    states = {one.state for one in seen}
    if len(states) == 1:
        return states.pop()
    for worst in ("failed", "lost", UNKNOWN, "stopping", "stopped"):
        if worst in states:
            return worst
    return "starting"


def logs(group: Group, lines: int, exec_: Run = run) -> Iterator[tuple[str, list[str] | None, str]]:
    """(host, last lines of its log or None, why there are none), node 0 first."""

    def one(member: Member) -> tuple[str, list[str] | None, str]:
        output = _k3ctl(group, member, ["logs", member.run, "-n", str(lines), "--json"], ANSWER_S, exec_)
        try:
            data = json.loads(ssh.document(output.stdout))["data"]
            return member.host, [str(line) for line in data["lines"]], ""
        except (ValueError, KeyError, TypeError, RecursionError):
            return member.host, None, _problem(output, ANSWER_S)

    return iter(_each(group, one))


def follow(group: Group, lines: int) -> Iterator[tuple[str, str]]:
    """(host, line) of every node's log as they come, until all engines have ended."""
    found: queue.Queue[tuple[str, str] | None] = queue.Queue()
    children = [
        subprocess.Popen(
            _argv(group, member, ["logs", member.run, "-f", "-n", str(lines)]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for member in group.members
    ]

    def read(host: str, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            found.put((host, line.rstrip("\n")))
        found.put(None)

    for member, child in zip(group.members, children, strict=True):
        threading.Thread(target=read, args=(member.host, child), daemon=True).start()
    try:
        running = len(children)
        while running:
            item = found.get()
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def as_data(group: Group, seen: list[Seen] | None = None) -> dict[str, Any]:
    """A group for scripts."""
    now: Mapping[str, Seen] = {one.member.host: one for one in seen or ()}
    return {
        "id": group.id,
        "profile": group.profile,
        "state": state(group, seen) if seen else group.state,
        "url": group.url,
        "served_model_name": group.served_model_name,
        "master_addr": group.master_addr,
        "master_port": group.master_port,
        "started_at": group.started_at,
        "ready_at": group.ready_at,
        "ended_at": group.ended_at,
        "reason": group.reason,
        "dir": str(group.dir),
        "members": [
            {
                "host": member.host,
                "rank": member.rank,
                "address": member.address,
                "run": member.run,
                "log": member.log,
                "state": now[member.host].state if member.host in now else None,
                "reason": now[member.host].reason if member.host in now else None,
            }
            for member in group.members
        ],
    }


def _each(group: Group, ask: Any) -> list[Any]:
    with ThreadPoolExecutor(max_workers=len(group.members)) as pool:
        return list(pool.map(ask, group.members))


def _status(group: Group, member: Member, exec_: Run) -> Seen:
    if not member.run:
        return Seen(member, "lost", "it never had a run")
    output = _k3ctl(group, member, ["ps", "--all", "--here", "--json"], ANSWER_S, exec_)
    return _seen(member, output, ANSWER_S)


def _stop(group: Group, member: Member, exec_: Run) -> Seen:
    if not member.run:
        return Seen(member, "stopped", "it never had a run")
    output = _k3ctl(group, member, ["stop", member.run, "--json"], STOP_S, exec_)
    return _seen(member, output, STOP_S)


def _seen(member: Member, output: Output, limit_s: float) -> Seen:
    try:
        data = json.loads(ssh.document(output.stdout))["data"]
        mine = next(one for one in data["runs"] if one["id"] == member.run)
        return Seen(member, str(mine["state"]), str(mine["reason"]))
    except StopIteration:
        return Seen(member, "lost", "its run's directory is gone")
    except (ValueError, KeyError, TypeError, RecursionError):
        return Seen(member, UNKNOWN, _problem(output, limit_s))


def _problem(output: Output, limit_s: float) -> str:
    if output.code == TIMED_OUT:
        return f"no answer within {limit_s:g} s"
    return ssh.last_line(output.stderr) or f"status {output.code} without a message"


def _argv(group: Group, member: Member, words: list[str]) -> list[str]:
    return ssh.argv(
        member.host, [group.remote_k3ctl, *words], min(group.node_timeout_s / 2, 10), watched=True
    )


def _k3ctl(group: Group, member: Member, words: list[str], limit_s: float, exec_: Run) -> Output:
    return exec_(_argv(group, member, words), limit_s)
