"""The life of one ``k3ctl serve``: refused or warned, verified, watched, stopped."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from k3ctl import output
from k3ctl.errors import ExitCode, K3Error, MachineError, UsageError
from k3ctl.gpus.types import Node
from k3ctl.gpus.visible import visible
from k3ctl.output import CommandResult, Lines

if TYPE_CHECKING:
    from k3ctl.checks import Finding
    from k3ctl.checks.merge import Gathered
    from k3ctl.commands.serve.narrator import Narrator
    from k3ctl.engine.launch import RunningEngine
    from k3ctl.engine.rundir import Run
    from k3ctl.machine.record import Machine
    from k3ctl.planning.preflight import Preflight
    from k3ctl.profiles.resolve import ResolvedConfig

VISIBLE = "CUDA_VISIBLE_DEVICES"


def check(resolved: ResolvedConfig, overrides: Mapping[str, str] | None = None) -> tuple[Node, list[str]]:
    """Refuse what `k3ctl doctor` and `k3ctl plan` know cannot work on this node.

    Returns what was seen of its GPUs, and warnings about what is not known.
    ``overrides`` are the ones that were typed, so that the hint can repeat them.
    """
    from k3ctl.checks.merge import Gathered
    from k3ctl.engine import preflight as start

    start.interpreter()  # without an engine every other reason is beside the point
    machine, started = machines(resolved)
    return machine.node, judge(resolved, Gathered((started,)), overrides or {})


def machines(resolved: ResolvedConfig) -> tuple[Machine, Machine]:
    """This machine, and the part of it that the engine can see."""
    from k3ctl.engine import rundir
    from k3ctl.machine.read import read

    machine = read(runs=rundir.sessions())
    chosen = resolved.env.get(VISIBLE, os.environ.get(VISIBLE))
    return machine, replace(machine, node=_narrowed(machine.node, chosen))


def judge(
    resolved: ResolvedConfig, gathered: Gathered, overrides: Mapping[str, str], nodes: str = ""
) -> list[str]:
    """Refuse what cannot work on the machines; warnings about what is not known of them.

    ``nodes``: the hosts as they were typed; without them it is this machine's share.
    """
    from k3ctl.planning.preflight import HOSTS, preflight
    from k3ctl.planning.proposal import Proposal

    answer = preflight(Proposal(resolved), gathered, share=not nodes)
    if answer.blocking:
        raise MachineError(
            f"{nodes or 'this machine'} cannot serve `{resolved.profile.name}`",
            reasons=[_reason(reason) for reason in answer.blocking],
            hint=hint(resolved, answer, overrides, nodes),
        )
    unknown = dict.fromkeys(reason.title for reason in answer.unknowns if reason.id != HOSTS)
    return [f"not known before the start: {title[:1].lower()}{title[1:]}" for title in unknown]


def choose(*, several: bool = False) -> tuple[str, dict[str, str]]:
    """The profile that `k3ctl plan` chooses for this machine, and its ``--set`` values; told on stderr.

    Raises:
        MachineError: it chooses none, or the GPUs cannot be read.
        UsageError: the launch spans ``several`` hosts.
    """
    from k3ctl.engine import preflight as start
    from k3ctl.planning import choice

    if several:
        raise UsageError(
            "name the profile of a launch over several hosts", hint="`k3ctl plan --hardware …` chooses one"
        )
    start.interpreter()
    best = choice.chosen(choice.for_this_host())
    output.note(f"profile: `{best.command}`, as `k3ctl plan` chooses for this machine ({best.reason})")
    return best.profile.name, dict(best.overrides)


def _narrowed(node: Node, chosen: str | None) -> Node:
    """The host with the GPUs that the engine can see; all of them where their list cannot be read."""
    found = visible(node, chosen) if chosen is not None else None
    if found is None:
        return node
    indices = {gpu.index for gpu in found}
    pairs = node.pairs and tuple(pair for pair in node.pairs if {pair.a, pair.b} <= indices)
    return replace(node, gpus=tuple(found), pairs=pairs)


def seen(resolved: ResolvedConfig, node: Node | None) -> dict[str, Any]:
    """What the run's record keeps of the machine: the GPUs that the engine can see, and the driver."""
    from k3ctl import gpus
    from k3ctl.host.values import known

    if not resolved.profile.requires.gpus:
        return {"gpus": []}
    node = node or gpus.snapshot().nodes[0]
    found = visible(node, resolved.env.get(VISIBLE, os.environ.get(VISIBLE)))
    listed = None
    if found is not None:
        listed = [
            {"index": gpu.index, "name": known(gpu.name, None), "uuid": known(gpu.uuid, None)}
            for gpu in found
        ]
    return {"gpus": listed, "driver": node.nvml.driver or ""}


def _reason(reason: Finding) -> str:
    place = reason.where.partition(" (")[0]
    return f"{place + ': ' if place else ''}{reason.title}: {reason.evidence}"


def hint(resolved: ResolvedConfig, answer: Preflight, overrides: Mapping[str, str], nodes: str = "") -> str:
    """Commands that go on from a refusal: the same start with the nearest accepted values, where there are such."""
    from k3ctl.planning.rules import changes
    from k3ctl.profiles import loader

    name = resolved.profile.name
    profile = name if name in loader.names() else shlex.quote(resolved.profile.file)
    group = f" --nodes {shlex.quote(nodes)}" if nodes else ""
    explained = f"`k3ctl doctor --profile {profile}{group}` explains; --skip-checks starts anyway"
    accepted = changes(answer.rules)
    if not accepted:
        return explained
    typed = {key: value for key, value in overrides.items() if not _superseded(key, accepted)} | accepted
    words = " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in typed.items())
    return f"`k3ctl serve -p {profile} {words}{group}` takes the nearest accepted values; {explained}"


def _superseded(key: str, accepted: Mapping[str, str]) -> bool:
    return any(
        key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in accepted
    )


class Terminated(BaseException):
    """SIGTERM arrived."""


def terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Handler of SIGTERM."""
    raise Terminated


def verify(run: Run, tell: Narrator, api_key: str | None = None) -> None:
    """Tell which decode path runs; a server whose path cannot be told goes on serving."""
    from k3ctl.engine import rundir
    from k3ctl.verdict import check

    try:
        with rundir.quiet(run.dir):
            verdict = check.check(check.target(None, run.id), api_key=api_key)
    except K3Error as error:
        tell.line(f"path: not verified ({error.message})")
        return
    tell.line(f"path: {verdict.grade} — {verdict.statement}")
    for note in verdict.notes:
        tell.line(f"note: {note}")
    if verdict.remedy:
        tell.line(f"hint: {verdict.remedy}")


def canary(run: Run, tell: Narrator, api_key: str | None) -> None:
    """Tell whether ten fixed prompts are answered sensibly; a server that answers badly goes on serving."""
    from k3ctl.canary import send
    from k3ctl.server.client import Client

    client = Client(run.url, api_key=api_key)
    try:
        report = send.run(client, run.served_model_name)
    finally:
        client.close()
    tell.line(f"canary: {report.verdict} — {report.statement}")
    for found in report.results:
        for fault, detail in found.faults:
            tell.line(f"  {found.prompt.id}: {fault}: {detail}")


def stay(
    engine: RunningEngine,
    tell: Narrator,
    warnings: list[str],
    until: Callable[[], bool] = lambda: False,
) -> CommandResult:
    """Wait for the end of the engine, or ``until`` it shall be left, telling what the watch finds."""
    from k3ctl.engine.launch import failure

    told = 0
    while not engine.wait(0.5):
        if until():
            return result(engine.run, warnings)
        findings = engine.run.findings
        for finding in findings[told:]:
            tell.line(f"{finding['kind']}: {finding['text']}")
            if finding["files"]:
                tell.line(f"  evidence: {Path(finding['files'][0]).parent}")
        told = len(findings)
    run = engine.run
    if run.state == "failed":
        raise failure(run)
    tell.line(f"stopped ({run.reason})")
    return result(run, warnings)


def stopped(engine: RunningEngine, tell: Narrator, interrupted: bool) -> CommandResult:
    """Stop gracefully; another Ctrl-C or SIGTERM makes it firm."""
    tell.line("stopping; again to stop at once" if interrupted else "stopping")
    while True:
        try:
            engine.stop()
            break
        except (KeyboardInterrupt, Terminated):
            engine.stop_now()
    tell.line("stopped")
    return result(engine.run, [], code=ExitCode.INTERRUPTED if interrupted else ExitCode.OK)


def warn(resolved: ResolvedConfig, run: Run, unknown: list[str]) -> list[str]:
    """What is allowed but worth knowing, and what ``check`` could not know; told at once, and again in the result."""
    from k3ctl.engine.preflight import KNOWN_VLLM
    from k3ctl.engine.rundir import LOOPBACK

    warnings = list(unknown)
    if run.host not in LOOPBACK and not (resolved.get("api_key") or os.environ.get("VLLM_API_KEY")):
        warnings.append(f"listening on {run.host} without an API key: set VLLM_API_KEY")
    if run.vllm.split("+")[0] not in KNOWN_VLLM:
        warnings.append(f"vLLM {run.vllm} is not a version that this k3ctl knows ({', '.join(KNOWN_VLLM)})")
    for warning in warnings:
        output.note(f"warning: {warning}")
    return warnings


def after_detach(run: Run) -> list[str]:
    """What a person needs next."""
    return [f"{run.url}/v1", f"run {run.id} · k3ctl logs {run.id} · k3ctl stop {run.id}"]


def result(
    run: Run, warnings: list[str], lines: list[str] | None = None, code: ExitCode = ExitCode.OK
) -> CommandResult:
    """The run for scripts, and ``lines`` for people."""
    from k3ctl.commands.runs import as_data

    blocks = [Lines(lines)] if lines else []
    return CommandResult("k3ctl.serve/1", as_data(run) | {"notes": warnings}, blocks, code)
