"""A plan and a selection in words and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from k3ctl.checks.finding import Area, Finding, Severity
from k3ctl.output import Block, Lines, Table
from k3ctl.planning.actual import Row
from k3ctl.planning.memory import GIB, MemoryPlan
from k3ctl.planning.plan import Plan
from k3ctl.planning.rules import Effect, PlanFinding
from k3ctl.planning.selection import Selection
from k3ctl.planning.vllm_check import VllmAnswer

MOST_PLACES = 4
EFFECTS = {
    Effect.IMPOSSIBLE: "cannot run",
    Effect.REFUSED: "vLLM refuses",
    Effect.FAILS: "fails later",
    Effect.STANDARD: "standard path",
    Effect.COST: "cost",
}


def plan_blocks(plan: Plan) -> list[Block]:
    """Everything about one plan."""
    d = plan.deployment
    profile = d.config.profile
    hardware = d.hardware.describe() if d.hardware else "what the profile requires (none was looked at)"
    lines = [
        f"{profile.name}: {profile.summary}",
        f"status: {profile.status} · vLLM {d.vllm}",
        f"hardware: {hardware}",
        *_group(plan),
        f"verdict: {_verdict(plan)}",
    ]
    blocks: list[Block] = [Lines(lines)]
    if plan.machine:
        blocks.append(_machine_table(plan.machine))
    if plan.findings:
        blocks.append(findings_table("findings", plan.findings))
    if plan.if_specialized:
        blocks.append(
            findings_table(
                "the specialized path is not asked for; against it would stand", plan.if_specialized
            )
        )
    if plan.memory:
        blocks += _memory_blocks(plan.memory)
    if plan.prefix:
        blocks.append(Lines(plan.prefix.lines(d.workload.input_tokens)))
    blocks.append(Lines(_limits(plan)))
    return blocks


def _verdict(plan: Plan) -> str:
    if not plan.can_run:
        count = len(plan.blocking)
        now = " (now)" if all(reason.id == "memory.free" for reason in plan.blocking) else ""
        return f"cannot run{now}: {count} reason{'s' if count > 1 else ''}"
    if not plan.certain:
        titles = dict.fromkeys(reason.title for reason in plan.preflight.unknowns)
        return f"may run; not known: {'; '.join(titles)}"
    texts = {
        "specialized": "runs; decode steps are specialized",
        "partly specialized": "runs; some decode steps take the standard path, see the findings",
        "standard": "runs; all decode steps take the standard path",
    }
    return texts[plan.verdict]


def _group(plan: Plan) -> list[str]:
    """The hosts that would serve, and those that a fault keeps out."""
    group = plan.preflight.group
    lines = []
    if group.members:
        lines.append(
            f"group: {', '.join(f'{host} ({len(gpus)} GPUs)' for host, gpus in group.members.items())}"
        )
    if group.left_out:
        lines.append(f"left out: {'; '.join(str(entry) for entry in group.left_out)}")
    return lines if plan.deployment.config.profile.requires.gpus else []


def _machine_table(reasons: Iterable[Finding]) -> Table:
    """What the hosts have against it, and what nobody read of them."""
    same: dict[tuple[str, str, str], list[str]] = {}
    for reason in reasons:
        effect = "cannot start" if reason.severity is Severity.FAIL else "unknown"
        place = " ".join(filter(None, [reason.node, reason.where.partition(" (")[0]]))
        said = (
            reason.evidence
            if reason.area is Area.PROFILE and not reason.where
            else f"{reason.title}: {reason.evidence}"
        )
        same.setdefault((effect, reason.id, reason.remedy), []).append(f"{place}: {said}" if place else said)
    rows = [
        [effect, id_, "; ".join([*places[:MOST_PLACES], *more(places)]), remedy]
        for (effect, id_, remedy), places in same.items()
    ]
    return Table(["machines", "rule", "read", "what to do"], rows)


def more(places: Sequence[str]) -> list[str]:
    """That there are more places than are shown."""
    return [f"and {len(places) - MOST_PLACES} more places"] if len(places) > MOST_PLACES else []


def findings_table(title: str, findings: Iterable[PlanFinding]) -> Table:
    """Findings, the worst effect first."""
    order = list(Effect)
    rows = [
        [EFFECTS[f.rule.effect], f.rule.id, f.hit.found, f.hit.alternative]
        for f in sorted(findings, key=lambda f: order.index(f.rule.effect))
    ]
    return Table(["effect", "rule", "found", "nearest alternative"], rows, title=title)


def _memory_blocks(memory: MemoryPlan) -> list[Block]:
    rows = [[item.name, f"{item.size_bytes / GIB:.2f}", item.basis] for item in memory.items]
    rows.append(["vLLM's budget", f"{memory.budget_bytes / GIB:.2f}", f"of {memory.gpu_bytes / GIB:.1f} GiB"])
    rows.append(["left for the cache", f"{memory.cache_bytes / GIB:.2f}", "estimate"])
    cells = memory.geometry
    lines = [
        f"cache: {memory.blocks:,} blocks of {cells.block_bytes / 1e6:.1f} MB; a block holds {cells.granule_tokens:,} "
        "tokens of a sequence (prefix hits come in these steps); a running request takes "
        f"{cells.kda_blocks_per_request} more for its KDA state",
    ]
    if memory.blocks:
        lines.append(
            f"fits (estimate): {memory.sequences:.1f} sequences of {memory.sequence_tokens:,} tokens; "
            f"{memory.longest_tokens:,} tokens each for {memory.max_num_seqs} requests; "
            f"{memory.longest_single_tokens:,} for one"
        )
    return [Table(["memory per GPU", "GiB", "basis"], rows, right=frozenset({"GiB"})), Lines(lines)]


def _limits(plan: Plan) -> list[str]:
    budget = plan.budget
    lines = [
        f"batch: up to {budget['max_num_seqs']:,} requests and {budget['scheduled_tokens']:,} scheduled tokens a step; "
        f"{budget['rows_per_decode_step']:,} rows in a decode step, {budget['specialized_rows']} run specialized "
        f"({budget['specialized_requests']} requests)"
    ]
    if plan.estimate:
        e = plan.estimate
        lines.append(
            f"speed (estimate, decode only): {e.tok_s:,.0f} tok/s at concurrency {e.concurrency}, context "
            f"{e.context:,}, {e.path} path; a step takes {e.step_ms:.2f} ms"
        )
        lines.append(f"  basis: {e.basis}")
    for anchor in plan.deployment.config.profile.expect.anchors:
        lines.append(
            f"published {anchor.id}: {anchor.result} ({anchor.conditions}; {anchor.source}, {anchor.when})"
        )
    return lines


def selection_blocks(selection: Selection) -> list[Block]:
    """The ranking."""
    lines = [
        f"hardware: {selection.hardware.describe()}",
        *(f"note: {note}" for note in selection.hardware.notes),
    ]
    chosen = selection.chosen
    if chosen is None:
        lines.append("no profile can run here")
        if selection.shortfall:
            lines.append(selection.shortfall)
    else:
        doubt = "" if chosen.plan.certain else "may run, see what is unknown; "
        lines.append(f"for {selection.objective}: {chosen.command} ({doubt}{chosen.reason})")
    rows = [[c.profile.name, c.reason] for c in selection.others]
    return [Lines(lines), Table(["not chosen", "why"], rows)]


def comparison_table(rows: Sequence[Row]) -> Table:
    """Predicted against actual."""
    cells = [[r.quantity, f"{r.predicted:,.2f}", f"{r.actual:,.2f}", f"{r.difference:+.1%}"] for r in rows]
    columns = ["predicted against actual", "predicted", "actual", "difference"]
    return Table(columns, cells, right=frozenset(columns[1:]))


def vllm_lines(answer: VllmAnswer) -> Lines:
    """What the real vLLM said."""
    if answer.error is not None:
        lines = [f"vLLM refuses this configuration: {answer.error}"]
    elif answer.unsupported is not None:
        lines = [f"vLLM would refuse the specialized path: {answer.unsupported}"]
    else:
        lines = ["vLLM accepts this configuration, and the specialized path for it"]
    if answer.disagreement:
        lines.append(f"this is a bug in k3ctl, please report it: {answer.disagreement}")
    lines += [f"vLLM warns: {warning}" for warning in answer.warnings]
    return Lines(lines)
