"""The life of one ``k3ctl serve``: refused or warned, verified, watched, stopped."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from k3ctl import output
from k3ctl.errors import ExitCode, K3Error, MachineError
from k3ctl.output import CommandResult, Lines

if TYPE_CHECKING:
    from k3ctl.commands.serve.narrator import Narrator
    from k3ctl.engine.launch import RunningEngine
    from k3ctl.engine.rundir import Run
    from k3ctl.gpus.types import Snapshot
    from k3ctl.profiles.resolve import ResolvedConfig


def check(resolved: ResolvedConfig) -> Snapshot:
    """Refuse what `k3ctl doctor` and `k3ctl plan` know cannot work on this node; what was seen of its GPUs."""
    from k3ctl.checks import Severity, evaluate
    from k3ctl.gpus.collect import reading

    profile = resolved.profile
    here = profile.requires.model_copy(update={"gpus": profile.requires.gpus_per_node, "nodes": 1})
    read = reading()
    findings = evaluate(read.snapshot, read.host, requires=here)
    chosen = _chosen_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    held = [f for f in findings if f.id == "gpu.memory-held" and (not chosen or _gpu(f.where) in chosen)]
    failed = [*held, *(f for f in findings if f.severity is Severity.FAIL)]
    if failed:
        raise MachineError(
            f"this machine cannot serve `{profile.name}`",
            reasons=[f"{finding.title}: {finding.evidence}" for finding in failed],
            hint=f"`k3ctl doctor --profile {profile.name}` explains; --skip-checks starts all the same",
        )
    if profile.requires.gpus:
        _check_specialized(resolved, read.snapshot)
    return read.snapshot


def seen(resolved: ResolvedConfig, snapshot: Snapshot | None) -> dict[str, Any]:
    """What the run's record keeps of the machine: the GPUs that the engine can see, and the driver."""
    from k3ctl import gpus
    from k3ctl.gpus.visible import visible
    from k3ctl.host.values import known

    if not resolved.profile.requires.gpus:
        return {"gpus": []}
    node = (snapshot or gpus.snapshot()).nodes[0]
    name = "CUDA_VISIBLE_DEVICES"
    found = visible(node, resolved.env.get(name, os.environ.get(name)))
    listed = None
    if found is not None:
        listed = [
            {"index": gpu.index, "name": known(gpu.name, None), "uuid": known(gpu.uuid, None)}
            for gpu in found
        ]
    return {"gpus": listed, "driver": node.nvml.driver or ""}


def _check_specialized(resolved: ResolvedConfig, snapshot: Snapshot) -> None:
    """Refuse now what vLLM refuses minutes later, when it builds the model: by plan's rule, on the GPUs seen here."""
    from k3ctl.planning.deployment import Deployment
    from k3ctl.planning.detect import from_snapshots
    from k3ctl.planning.rules import checked, evaluate

    here = Deployment(resolved, from_snapshots([snapshot], "this host"))
    for finding in evaluate([rule for rule in checked.RULES if rule.id == "specialized.gpu"], here):
        raise MachineError(
            f"`{resolved.profile.name}` asks for the specialized decode, which vLLM has for SM100 and SM103 only",
            reasons=[f"the GPUs of this host have {finding.hit.found}"],
            hint="`--set additional_config.decode_backend=auto` serves with the standard path",
        )


def _chosen_gpus(visible: str | None) -> set[str]:
    """Indices in CUDA_VISIBLE_DEVICES; empty when it names none by index, which means every GPU."""
    words = {word.strip() for word in (visible or "").split(",")}
    return words if words and all(word.isdigit() for word in words) else set()


def _gpu(label: str) -> str:
    """``3`` of ``GPU 3 (0008:01:00.0)``."""
    return label.split()[1] if label.startswith("GPU ") else ""


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


def stay(engine: RunningEngine, tell: Narrator, warnings: list[str]) -> CommandResult:
    """Wait for the end of the engine, telling what the watch finds."""
    from k3ctl.engine.launch import failure

    told = 0
    while not engine.wait(0.5):
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


def warn(resolved: ResolvedConfig, run: Run) -> list[str]:
    """What is allowed but worth knowing; told at once, and again in the result."""
    from k3ctl.engine.preflight import KNOWN_VLLM
    from k3ctl.engine.rundir import LOOPBACK

    warnings = []
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
