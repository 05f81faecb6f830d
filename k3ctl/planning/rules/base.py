"""What a rule is, and how rules are evaluated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from k3ctl.planning.proposal import Proposal

BACKEND = "additional_config.decode_backend"


class Effect(StrEnum):
    """What happens when a rule's condition is not met."""

    IMPOSSIBLE = "cannot run here"
    """The hardware or the memory does not allow it."""
    REFUSED = "vLLM refuses to start"
    """vLLM checks this itself and stops, after loading has begun, at the first condition it meets."""
    FAILS = "not checked by vLLM: fails, hangs or answers wrongly"
    """Nothing stops it; it goes wrong at the end of the load or while serving."""
    STANDARD = "runs the standard path without a word"
    """The server works; some or all decode steps are not specialized."""
    COST = "works, at a cost"
    """Memory, speed or visibility is lost."""

    @property
    def blocks(self) -> bool:
        """Whether the deployment must not be started."""
        return self in {Effect.IMPOSSIBLE, Effect.REFUSED, Effect.FAILS}


@dataclass(frozen=True)
class Hit:
    """One rule's finding in one deployment: what is there, the nearest accepted alternative."""

    found: str
    alternative: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """``--set`` keys and values that reach the alternative."""


Check = Callable[[Proposal], Hit | None]


@dataclass(frozen=True)
class PlanRule:
    """A condition and where it comes from."""

    id: str
    title: str
    effect: Effect
    check: Check
    source: str
    date: str
    vllm: str
    """Version specifier; the rule does not fire outside it."""
    specialized: bool
    """It concerns the specialized path only."""
    platform: str
    """``cuda``, ``cpu`` or ``any``."""
    reason: str = ""
    """vLLM's own words for it, where vLLM checks it."""

    def applies_to(self, deployment: Proposal, *, specialized: bool) -> bool:
        """Whether the rule is to be evaluated for this version, platform and path."""
        if self.specialized and not specialized:
            return False
        if self.platform == ("cuda" if deployment.on_cpu else "cpu"):
            return False
        return _within(self.vllm, deployment.vllm)


@functools.cache
def _within(specifier: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


@dataclass(frozen=True)
class PlanFinding:
    """A rule that fired."""

    rule: PlanRule
    hit: Hit

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "rule": self.rule.id,
            "effect": self.rule.effect.name.lower(),
            "found": self.hit.found,
            "alternative": self.hit.alternative,
            "changes": dict(self.hit.changes),
            "vllm_reason": self.rule.reason or None,
            "source": self.rule.source,
            "vllm": self.rule.vllm,
            "date": self.rule.date,
        }


def changes(findings: Iterable[PlanFinding]) -> dict[str, str]:
    """``--set`` keys and values that reach the nearest accepted configuration, of the rules that stand against a start.

    Empty when one of them names no such change: then none of them helps.
    """
    blocking = [finding for finding in findings if finding.rule.effect.blocks]
    if any(finding.hit.changes.get(BACKEND) == "auto" for finding in blocking):
        # the standard path is the nearest that works: what only the specialized one needs stands no longer against it
        rest = changes(finding for finding in blocking if not finding.rule.specialized)
        others = any(not finding.rule.specialized for finding in blocking)
        return {BACKEND: "auto"} | rest if rest or not others else {}
    if not all(finding.hit.changes for finding in blocking):
        return {}
    found: dict[str, str] = {}
    for finding in blocking:
        for key, value in finding.hit.changes.items():
            found.setdefault(key, str(value).lower() if isinstance(value, bool) else str(value))
    return found


class RuleSet:
    """Collects the rules of one module; the check's docstring is the rule's title."""

    def __init__(self, *, effect: Effect, source: str, date: str, vllm: str, specialized: bool = True):
        self.rules: list[PlanRule] = []
        self._defaults: dict[str, Any] = {
            "effect": effect,
            "source": source,
            "date": date,
            "vllm": vllm,
            "specialized": specialized,
            "platform": "cuda",
        }

    def rule(self, id: str, **different: Any) -> Callable[[Check], Check]:
        """Add a check under ``id``; keywords replace the module's defaults."""

        def add(check: Check) -> Check:
            title = (check.__doc__ or "").strip().removesuffix(".")
            self.rules.append(PlanRule(id=id, title=title, check=check, **(self._defaults | different)))
            return check

        return add


def evaluate(
    rules: Iterable[PlanRule], deployment: Proposal, *, specialized: bool | None = None
) -> list[PlanFinding]:
    """Every rule that fires, in the rules' order.

    ``specialized`` True evaluates the specialized path's rules even where the deployment does not ask for it.
    """
    wanted = deployment.specialized if specialized is None else specialized
    findings = []
    for rule in rules:
        hit = rule.check(deployment) if rule.applies_to(deployment, specialized=wanted) else None
        if hit is not None:
            findings.append(PlanFinding(rule, hit))
    return findings
