"""Choose a profile for given hardware: rank all of them by an objective, and say why each other one lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Any

from k3ctl.planning import tuning
from k3ctl.planning.hardware import Hardware
from k3ctl.planning.plan import Plan, make
from k3ctl.planning.proposal import UNKNOWN, Proposal, Workload
from k3ctl.planning.rules import Effect
from k3ctl.planning.rules.requirements import CHECKPOINT_MINIMUM_GB
from k3ctl.profiles.resolve import resolve
from k3ctl.profiles.schema import Profile


class Objective(StrEnum):
    """What a deployment is for."""

    LATENCY = "latency"
    """Tokens per second of one request."""
    THROUGHPUT = "throughput"
    """Tokens per second over all requests and replicas."""
    LONG_CONTEXT = "long-context"
    """Longest sequences at the expected concurrency."""


ERROR = 0.10
"""Scores closer than this are the same: the estimates are not finer."""


@dataclass(frozen=True)
class Candidate:
    """One profile on the hardware, adapted to the workload."""

    plan: Plan
    overrides: Mapping[str, str]
    """``--set`` values that adapt the profile to the expected concurrency."""
    score: float
    replicas: int
    reason: str
    """Why it won, or why it lost."""

    @property
    def profile(self) -> Profile:
        """The profile."""
        return self.plan.deployment.config.profile

    @property
    def command(self) -> str:
        """What to type after ``k3ctl``: the profile with its overrides."""
        return " ".join(
            [self.profile.name, *(f"--set {key}={value}" for key, value in self.overrides.items())]
        )

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "profile": self.profile.name,
            "overrides": dict(self.overrides),
            "can_run": self.plan.can_run,
            "score": round(self.score, 1),
            "replicas": self.replicas,
            "reason": self.reason,
            "standing": self.plan.preflight.standing.value,
            "blocking": [reason.evidence for reason in self.plan.blocking],
        }


@dataclass(frozen=True)
class Selection:
    """The ranking; ``chosen`` is None when nothing can run."""

    objective: Objective
    hardware: Hardware
    chosen: Candidate | None
    others: tuple[Candidate, ...]
    shortfall: str
    """Why Kimi K3 does not fit this hardware at all; empty where it does."""

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "objective": self.objective.value,
            "hardware": self.hardware.json(),
            "chosen": self.chosen.json() if self.chosen else None,
            "plan": self.chosen.plan.json() if self.chosen else None,
            "others": [candidate.json() for candidate in self.others],
            "shortfall": self.shortfall,
        }


@dataclass(frozen=True)
class _Race:
    """What the candidates are compared on."""

    hardware: Hardware
    objective: Objective
    workload: Workload
    vllm: str

    def enter(self, profile: Profile) -> Candidate:
        """The best variant of ``profile``, or the reason why it cannot take part.

        Where the hardware holds several replicas, each one gets its share of the requests.
        """
        replicas = _replicas(Proposal(resolve(profile), self.hardware), self.hardware)
        share = replace(self.workload, concurrency=ceil((self.workload.concurrency or 1) / replicas))
        entries = [self._entry(profile, o, share, replicas) for o in tuning.variants(profile, share)]
        return max(entries, key=lambda c: (not c.reason, c.score))

    def _entry(
        self, profile: Profile, overrides: Mapping[str, str], share: Workload, replicas: int
    ) -> Candidate:
        plan = make(Proposal(resolve(profile, overrides), self.hardware, share, self.vllm))
        reason = _out_of_the_race(profile, self.hardware, plan)
        score = 0.0 if reason else self._score(plan, replicas)
        return Candidate(plan, overrides, score, replicas, reason)

    def _score(self, plan: Plan, replicas: int) -> float:
        if self.objective is Objective.LONG_CONTEXT:
            requests = plan.deployment.workload.concurrency or 1
            return float(plan.memory.longest(requests)) if plan.memory else 0.0
        if plan.estimate is None:
            return 0.0
        if self.objective is Objective.THROUGHPUT:
            return plan.estimate.tok_s * min(replicas, self.workload.concurrency or 1)
        # requests beyond max_num_seqs wait, so all of them share what the admitted ones get
        return plan.estimate.tok_s / (plan.deployment.workload.concurrency or 1)

    def order(self, candidate: Candidate, best: float) -> tuple[bool, bool, bool, bool, float]:
        """What surely runs first, then the best; within the error the profile made for the objective.

        Failing that, the one for latency: the others carry parts that the estimates do not model.
        """
        goal, level = candidate.profile.goal, candidate.score >= best * (1 - ERROR)
        sure = candidate.plan.certain
        return (
            not sure,
            not level,
            goal != self.objective.value,
            goal != Objective.LATENCY.value,
            -candidate.score,
        )

    def describe(self, candidate: Candidate) -> str:
        """The candidate's score in words, marked as an estimate."""
        plan, concurrency = candidate.plan, candidate.plan.deployment.workload.concurrency or 1
        each = f" in each of {candidate.replicas} replicas" if candidate.replicas > 1 else ""
        if self.objective is Objective.LONG_CONTEXT and plan.memory is not None:
            return f"estimated {candidate.score:,.0f} tokens per sequence at concurrency {concurrency}{each}"
        if plan.estimate is None:
            return "the only one that runs here"
        at = f"at concurrency {plan.estimate.concurrency}{each}, {plan.estimate.path} path"
        what = "per request" if self.objective is Objective.LATENCY else "in all"
        return f"estimated {candidate.score:,.0f} tok/s {what} {at}"

    def beaten(self, candidate: Candidate, best: Candidate) -> str:
        """Why ``candidate`` lost to ``best``."""
        text = self.describe(candidate)
        if candidate.score >= best.score * (1 - ERROR):
            winner = best.profile
            return f"{text}: no better within the estimates' error; {winner.name} is for {winner.goal}"
        return f"{text}, against {best.score:,.0f} of {best.profile.name}"


def select(
    profiles: Iterable[Profile],
    hardware: Hardware,
    objective: Objective = Objective.LATENCY,
    workload: Workload = UNKNOWN,
    vllm: str = "0.33.0",
) -> Selection:
    """Rank ``profiles`` on ``hardware``."""
    race = _Race(hardware, objective, workload, vllm)
    candidates = [race.enter(profile) for profile in profiles]
    running = [c for c in candidates if not c.reason]
    lost = tuple(c for c in candidates if c.reason)
    if not running:
        return Selection(objective, hardware, None, lost, shortfall(hardware))
    top = max(c.score for c in running)
    best, *rest = sorted(running, key=lambda c: race.order(c, top))
    beaten = tuple(replace(c, reason=race.beaten(c, best)) for c in rest)
    return Selection(objective, hardware, replace(best, reason=race.describe(best)), beaten + lost, "")


def shortfall(hardware: Hardware) -> str:
    """Why the checkpoint does not fit into all GPUs together; empty where it does or there is no GPU."""
    total = hardware.gpus * hardware.nominal_gb
    if not total or total >= CHECKPOINT_MINIMUM_GB:
        return ""
    return (
        f"Kimi K3 does not fit: {hardware.gpus} x {hardware.nominal_gb} = {total} GB < "
        f"{CHECKPOINT_MINIMUM_GB} GB minimum for the MXFP4 checkpoint"
    )


def _out_of_the_race(profile: Profile, hardware: Hardware, plan: Plan) -> str:
    if not profile.requires.gpus and hardware.gpus:
        return "is for machines without a GPU"
    if plan.blocking:
        return _main_reason(plan)
    if profile.goal == "baseline":
        return "is a published baseline, for comparisons"
    if profile.pairs_with:
        return f"is one half of a pair with `{profile.pairs_with}`"
    return ""


def _main_reason(plan: Plan) -> str:
    """The wrong product alone, or all that the machines lack, or the first thing that vLLM trips over."""
    impossible = {f.rule.id for f in plan.findings if f.rule.effect is Effect.IMPOSSIBLE}
    machine = {reason.id for reason in plan.machine}
    first, *_ = plan.blocking
    if first.id == "requires.gpu" or first.id not in impossible | machine:
        return first.evidence
    # what a single host or GPU lacks is in the sentence about the group
    lacking = [r.evidence for r in plan.blocking if not r.node and r.id in impossible | machine]
    return "; ".join(dict.fromkeys(lacking))


def _replicas(deployment: Proposal, hardware: Hardware) -> int:
    """How often the deployment fits: whole tensor-parallel groups within the NVLink domains."""
    parallel = deployment.parallel
    if not deployment.config.profile.requires.nvlink_domain:
        return max(hardware.gpus // parallel.gpus, 1)
    groups = sum(domain.largest_tp // parallel.tp for domain in hardware.domains)
    return max(groups // (parallel.pp * parallel.dp), 1)
