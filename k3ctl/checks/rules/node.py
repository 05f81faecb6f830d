"""Collecting from other hosts. These findings are made by ``checks.remote`` while it collects."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.view import ClusterView

SSH = Source("https://man.openbsd.org/ssh", "2026-11", "exit status 255: ssh itself failed")


@rule(
    "node.unreachable",
    Severity.FAIL,
    Area.REPORT,
    "A host cannot be reached through ssh",
    blocks="the verdict on the group",
    remedy="try `ssh HOST true`; names, users and keys come from your own ssh configuration",
    sources=(SSH,),
    cluster=True,
)
def unreachable(cluster: ClusterView) -> Iterator[Hit]:
    yield from _made_while_collecting(cluster)


@rule(
    "node.no-k3ctl",
    Severity.FAIL,
    Area.REPORT,
    "k3ctl was not found on a host",
    blocks="the verdict on the group",
    remedy="install k3ctl there, or name its path with `--remote-k3ctl PATH`",
    sources=(SSH,),
    cluster=True,
)
def no_k3ctl(cluster: ClusterView) -> Iterator[Hit]:
    yield from _made_while_collecting(cluster)


@rule(
    "node.bad-report",
    Severity.FAIL,
    Area.REPORT,
    "A host answered with something that is no report",
    blocks="the verdict on the group",
    remedy="run `k3ctl doctor --json` there by hand; a login script may print to stdout",
    sources=(SSH,),
    cluster=True,
)
def bad_report(cluster: ClusterView) -> Iterator[Hit]:
    yield from _made_while_collecting(cluster)


@rule(
    "node.clock-skew",
    Severity.WARN,
    Area.REPORT,
    "A host's clock differs from this one's",
    blocks="reading logs of several hosts side by side",
    remedy="synchronise the clocks (chrony, NTP)",
    sources=(SSH,),
    cluster=True,
)
def clock_skew(cluster: ClusterView) -> Iterator[Hit]:
    yield from _made_while_collecting(cluster)


def _made_while_collecting(_: ClusterView) -> tuple[Hit, ...]:
    return ()
