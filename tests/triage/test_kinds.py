"""Kinds of failures, each in several wordings, with other ranks, numbers and versions."""

from __future__ import annotations

import re

import pytest

from k3ctl.triage.rules import all_rules
from k3ctl.triage.scan import scan_lines
from tests.triage import kinds_running, kinds_starting

KINDS = {**kinds_running.KINDS, **kinds_starting.KINDS}


@pytest.mark.parametrize(
    ("kind", "at"), [(kind, at) for kind, (*_, logs) in KINDS.items() for at in range(len(logs))]
)
def test_a_kind_is_known_in_all_its_wordings(kind, at):
    rule, texts, logs = KINDS[kind]
    report = scan_lines(logs[at], whole=True)
    main = report.incidents[0]
    told = f"{main.title}\n{main.cause}\n{main.action}\n" + "\n".join(main.evidence)
    assert main.rule.id == rule, [(i.rule.id, i.title, i.because) for i in report.incidents]
    for text in texts:
        assert text in told, told
    assert not re.search(r"\?(?!\w)", main.title) and "{" not in main.title


def renamed(lines: list[str]) -> list[str]:
    """Other ranks, pids and times: every worker two ranks further (of 16), four hours later."""

    def further(found: re.Match[str]) -> str:
        return f"(Worker_TP{(int(found[1]) + 2) % 16} pid={int(found[2]) + 5000})"

    moved = [re.sub(r"\(Worker_TP(\d+) pid=(\d+)\)", further, line) for line in lines]
    return [re.sub(r" 09-20 (\d\d):", lambda f: f" 09-20 {int(f[1]) + 4:02d}:", line) for line in moved]


NAMES_A_PID = {"host-oom", "cgroup-oom", "gpu-software-xid"}
"""Rules that join a kernel's log and the engine's by the pid: moving it on one side only would part them."""


@pytest.mark.parametrize("kind", [kind for kind, (rule, *_) in KINDS.items() if rule not in NAMES_A_PID])
def test_a_kind_does_not_depend_on_ranks_pids_and_times(kind):
    rule, _, logs = KINDS[kind]
    for log in logs:
        assert scan_lines(renamed(log), whole=True).incidents[0].rule.id == rule


def test_every_kind_that_looks_like_another_says_what_tells_them_apart():
    known = {rule.id for rule in all_rules()}
    by_id = {rule.id: rule for rule in all_rules()}
    for rule in {rule for rule, *_ in KINDS.values()}:
        for name in re.findall(r"`([a-z\-]+\d*)`", by_id[rule].unlike):
            assert name in known, f"{rule} is compared with {name}, which is no rule"
