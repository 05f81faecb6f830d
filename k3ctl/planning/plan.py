"""One deployment's plan: what fires, what fits, how fast it may be, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k3ctl.checks.finding import Finding
from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.planning import budget, memory, prefix
from k3ctl.planning.estimate import Estimate, estimate
from k3ctl.planning.memory import MemoryPlan
from k3ctl.planning.preflight import Preflight, preflight
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules import ALL, Effect, PlanFinding, evaluate

TYPICAL_TOKENS = 9000
"""Context for an estimate when no lengths are given: a published 8K/1K request."""


@dataclass(frozen=True)
class Plan:
    """The plan of one deployment."""

    deployment: Proposal
    findings: tuple[PlanFinding, ...]
    if_specialized: tuple[PlanFinding, ...]
    """For a deployment that does not ask for the specialized path: what would stand against it."""
    memory: MemoryPlan | None
    estimate: Estimate | None
    preflight: Preflight

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """Reasons for which it must not be started: of the machines and of the configuration."""
        return self.preflight.blocking

    @property
    def machine(self) -> tuple[Finding, ...]:
        """Reasons that only the machines give, unknowns included."""
        rules = {finding.rule.id for finding in self.findings}
        return tuple(reason for reason in self.preflight.reasons if reason.id not in rules)

    @property
    def can_run(self) -> bool:
        """Nothing that is known stands against starting it."""
        return not self.blocking

    @property
    def certain(self) -> bool:
        """All that the verdict rests on was read, or was given as healthy hardware."""
        return not self.preflight.unknowns

    @property
    def verdict(self) -> str:
        """``cannot run``, ``may run``, ``specialized``, ``partly specialized`` or ``standard``."""
        if not self.can_run:
            return "cannot run"
        if not self.certain:
            return "may run"
        if not self.deployment.specialized:
            return "standard"
        partly = any(
            f.rule.effect is Effect.STANDARD and f.rule.id != "specialized.prefill-mixed"
            for f in self.findings
        )
        return "partly specialized" if partly else "specialized"

    @property
    def prefix(self) -> prefix.PrefixPlan | None:
        """What the prefix cache will hit; None where it is off or its block is not known."""
        return prefix.of(self.deployment)

    @property
    def budget(self) -> dict[str, int]:
        """The batch limits that matter."""
        d = self.deployment
        spec = d.speculator or {}
        slots = budget.draft_slots(d.method, d.draft_tokens, bool(spec.get("parallel_drafting")))
        running = min(d.workload.concurrency or d.max_num_seqs, d.max_num_seqs)
        return {
            "max_num_batched_tokens": d.max_num_batched_tokens,
            "max_num_seqs": d.max_num_seqs,
            "draft_slots_per_request": slots,
            "scheduled_tokens": budget.scheduled_tokens(d.max_num_batched_tokens, running, slots),
            "rows_per_decode_step": budget.rows(running, d.draft_tokens),
            "specialized_rows": SPECIALIZED_ROWS,
            "specialized_requests": budget.specialized_requests(d.draft_tokens),
        }

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        d = self.deployment
        return {
            "profile": d.config.profile.name,
            "status": d.config.profile.status,
            "verdict": self.verdict,
            "can_run": self.can_run,
            "vllm": d.vllm,
            "hardware": d.hardware.json() if d.hardware else None,
            "preflight": self.preflight.json(),
            "findings": [finding.json() for finding in self.findings],
            "if_specialized": [finding.json() for finding in self.if_specialized],
            "memory": self.memory.json() if self.memory else None,
            "prefix_cache": self.prefix.json(d.workload.input_tokens) if self.prefix else None,
            "budget": self.budget,
            "estimate": self.estimate.json() if self.estimate else None,
        }


def make(deployment: Proposal, *, share: bool = False) -> Plan:
    """The plan of ``deployment``, on the machines that its hardware was read from; ``share``: some of its hosts."""
    machines = deployment.hardware.machines if deployment.hardware else None
    answer = preflight(deployment, machines, share=share)
    deployment, findings = answer.deployment, answer.rules
    hypothetical: tuple[PlanFinding, ...] = ()
    if not deployment.specialized:
        plain = {finding.rule.id for finding in findings}
        wanted = evaluate(ALL, deployment, specialized=True)
        hypothetical = tuple(f for f in wanted if f.rule.id not in plain and f.rule.effect.blocks)
    return Plan(
        deployment=deployment,
        findings=findings,
        if_specialized=hypothetical,
        memory=_memory(deployment),
        estimate=_estimate(deployment, findings),
        preflight=answer,
    )


def _memory(d: Proposal) -> MemoryPlan | None:
    if d.on_cpu or not d.whole_k3 or not d.gpu_bytes or d.parallel.tp not in (1, 2, 4, 8, 16):
        return None
    return memory.plan(d.memory_settings, d.workload.sequence_tokens)


def _estimate(d: Proposal, findings: tuple[PlanFinding, ...]) -> Estimate | None:
    if d.on_cpu:
        return None
    accepted = d.specialized and not any(f.rule.effect.blocks and f.rule.specialized for f in findings)
    context = d.workload.sequence_tokens or TYPICAL_TOKENS
    concurrency = min(d.workload.concurrency or 1, d.max_num_seqs)
    return estimate(d, concurrency=concurrency, context=context, specialized=accepted)
