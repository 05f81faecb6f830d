"""Doctor's question to the preflight: which profiles can run on what was read, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from k3ctl.checks.evaluate import sort
from k3ctl.checks.finding import Area, Finding, Severity
from k3ctl.checks.merge import Gathered
from k3ctl.checks.report import Report, Runnable, describe
from k3ctl.planning.preflight import HOSTS, Preflight, Standing, preflight
from k3ctl.planning.proposal import Proposal
from k3ctl.profiles.resolve import resolve
from k3ctl.profiles.schema import Profile

DEFAULT_VLLM = "0.33.0"
"""The version that k3ctl is written for, where no host tells which one it has."""


def judge(
    gathered: Gathered,
    *,
    profile: Profile | None = None,
    profiles: Iterable[Profile] = (),
    environ: Mapping[str, str] | None = None,
    share: bool = False,
) -> Report:
    """Doctor's report about ``gathered``: everything, or what one ``profile`` needs.

    ``environ`` is the caller's environment (overrides in ``K3CTL_SET``); ``share``: this may be one of several hosts.
    """
    answers = {
        p.name: answer(p, gathered, environ, share=share)
        for p in (*profiles, *([profile] if profile else []))
    }
    runnable = tuple(_runnable(p, answers[p.name]) for p in profiles)
    if profile is None:
        return describe(gathered, runnable)
    mine = answers[profile.name]
    findings = sort([*mine.reasons, *mine.notes, *_left_out(mine), *gathered.findings])
    return describe(gathered, runnable, profile=profile.name, findings=tuple(findings), answer=mine.json())


def answer(
    profile: Profile, gathered: Gathered, environ: Mapping[str, str] | None = None, *, share: bool = False
) -> Preflight:
    """The preflight of ``profile`` as it stands, on what was read."""
    return preflight(Proposal(resolve(profile, {}, environ), vllm=DEFAULT_VLLM), gathered, share=share)


def _runnable(profile: Profile, found: Preflight) -> Runnable:
    wrong = any(reason.id == "requires.gpu" and not reason.where for reason in found.blocking)
    driver = any(reason.area is Area.DRIVER for reason in found.blocking)
    # what a single host or GPU lacks is in the sentence about the group
    reasons = (
        [r for r in found.blocking if not r.node or r.area is Area.DRIVER] or found.blocking or found.unknowns
    )
    return Runnable(
        profile=profile.name,
        possible=found.standing in (Standing.RUNS, Standing.SHARE),
        standing=found.standing.value,
        reasons=tuple(dict.fromkeys(_said(reason) for reason in reasons)),
        unknown=tuple(dict.fromkeys(_said(reason) for reason in found.unknowns if reason.id != HOSTS)),
        hosts=profile.requires.nodes if found.standing in (Standing.SHARE, Standing.SHORT) else 0,
        other_hardware=wrong and not driver,
        group=tuple(found.group.members),
        left_out=tuple(str(entry) for entry in found.group.left_out),
    )


def _said(reason: Finding) -> str:
    """A reason in one line: an unknown with the way to know it."""
    if reason.severity is Severity.UNKNOWN:
        first, rest = reason.title.split(" ", 1)
        return f"{first if first.isupper() else first.lower()} {rest}"
    if reason.area is Area.PROFILE:
        return reason.evidence
    where = " ".join(filter(None, [reason.node, reason.where.partition(" (")[0]]))
    return f"{where + ': ' if where else ''}{reason.title}: {reason.evidence}"


def _left_out(found: Preflight) -> list[Finding]:
    """What the group leaves out, as warnings: the profile runs without it."""
    if not found.group.members:
        return []
    return [
        Finding(
            "group.left-out",
            Severity.WARN,
            Area.PROFILE,
            "Left out of the group",
            f"left out: {'; '.join(entry.why)}",
            node=entry.node,
            remedy="nothing for this profile: it runs on the others; repair it before a larger one",
        )
        for entry in found.group.left_out
    ]
