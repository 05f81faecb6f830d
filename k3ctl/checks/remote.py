"""Collect reports of other hosts through ssh: the operator's own configuration, one time limit per host.

A host that does not answer becomes a finding; the others are still judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from k3ctl.checks import merge
from k3ctl.checks.finding import RULES, Finding, Hit
from k3ctl.checks.merge import Gathered
from k3ctl.errors import UsageError
from k3ctl.host import ssh
from k3ctl.host.shell import MISSING, TIMED_OUT, Output, Run, run

AT_ONCE = 16
CLOCK_TOLERANCE_S = 5.0


def collect(nodes: Sequence[str], command: Sequence[str], limit_s: float, exec_: Run = run) -> Gathered:
    """Run ``command`` (a ``k3ctl doctor --json``) on every node at once and gather what comes back.

    Raises UsageError for a name that ssh would take for an option.
    """
    for node in nodes:
        if not node or node.startswith("-"):
            raise UsageError(f"`{node}` is no host name")
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        parts = list(pool.map(lambda node: _one(node, command, limit_s, exec_), nodes))
    return merge.combine(parts)


def _one(node: str, command: Sequence[str], limit_s: float, exec_: Run) -> Gathered:
    argv = ssh.argv(node, command, min(limit_s / 2, 10))
    before = time.time()
    output = exec_(argv, limit_s)
    after = time.time()
    if problem := _problem(output, limit_s):
        return _only(RULES[problem[0]].finding(Hit(problem[1]), node))
    try:
        part = merge.parse(json.loads(ssh.document(output.stdout)), source=node)
    except (ValueError, RecursionError) as error:
        return _only(RULES["node.bad-report"].finding(Hit(f"no JSON: {error}"), node))
    except UsageError as error:
        return _only(RULES["node.bad-report"].finding(Hit(error.message), node))
    skew = [s for host in part.hosts.values() if (s := _skew(host.collected_at, before, after))]
    found = [
        RULES["node.clock-skew"].finding(Hit(f"{value:+.0f} s against this host"), node) for value in skew
    ]
    return Gathered(part.machines, (*part.findings, *found), part.notes)


def _problem(output: Output, limit_s: float) -> tuple[str, str] | None:
    """(rule id, evidence) for a run that cannot have brought a report."""
    said = (output.stderr.strip().splitlines() or [""])[-1][:200]
    if output.code == TIMED_OUT:
        return "node.unreachable", f"no answer within {limit_s:g} s"
    if output.code == ssh.FAILED:
        return "node.unreachable", said or "ssh failed"
    if output.code == MISSING and not output.stdout.strip():
        return "node.no-k3ctl", said or "command not found"
    return None if output.stdout.strip() else ("node.bad-report", said or f"no output, status {output.code}")


def _skew(collected_at: float | None, before: float, after: float) -> float:
    """Seconds by which a report's clock lies outside the time in which it was made; 0 inside."""
    if collected_at is None:
        return 0.0
    if collected_at < before - CLOCK_TOLERANCE_S:
        return collected_at - before
    return collected_at - after if collected_at > after + CLOCK_TOLERANCE_S else 0.0


def _only(finding: Finding) -> Gathered:
    return Gathered((), (finding,))
