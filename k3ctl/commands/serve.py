"""``k3ctl serve``: start the engine of a profile, stay with it, stop it cleanly."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from k3ctl import output
from k3ctl.errors import ExitCode, MachineError, UsageError
from k3ctl.output import CommandResult, Lines

if TYPE_CHECKING:
    from k3ctl.engine.command import Node
    from k3ctl.engine.launch import RunningEngine
    from k3ctl.engine.rundir import Run
    from k3ctl.engine.stages import Stage
    from k3ctl.profiles.resolve import ResolvedConfig
    from k3ctl.profiles.schema import Profile

REPEAT_S = 10.0
"""How often a moving counter is told where stderr is no terminal."""

ProfileOption = Annotated[
    str, typer.Option("--profile", "-p", metavar="NAME", help="Profile name, or a .yaml file.")
]
HostOption = Annotated[
    str | None, typer.Option(help="Address to listen on; the default is loopback.", metavar="ADDRESS")
]
PortOption = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", metavar="N")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a vLLM argument by its own name; repeatable."),
]
DetachOption = Annotated[
    bool, typer.Option("--detach", "-d", help="Leave the engine running once it is ready.")
]


RankOption = Annotated[
    int | None,
    typer.Option("--node-rank", metavar="N", help="This node's number in a launch over several nodes."),
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master-addr", metavar="ADDRESS", help="Address of node 0, the same on every node."),
]
MasterPortOption = Annotated[
    int,
    typer.Option(
        "--master-port", metavar="N", help="vLLM's rendezvous port; supervisors talk on it plus 100."
    ),
]
ChecksOption = Annotated[
    bool, typer.Option("--skip-checks", help="Start although `k3ctl doctor` says that this machine cannot.")
]


def register(app: typer.Typer, command: Any) -> None:
    """Add the ``serve`` command."""
    command(
        app,
        "serve",
        epilog="Examples: k3ctl serve --profile cpu-tiny · k3ctl serve -p gb300-tp16 --port 8000 --detach · "
        "k3ctl serve -p cpu-tiny --port 0 --set max_num_seqs=4 · "
        "k3ctl serve -p gb300-tp16 --node-rank 1 --master-addr tray0",
    )(serve)


def serve(
    profile: ProfileOption,
    host: HostOption = None,
    port: PortOption = None,
    overrides: SetOption = None,
    detach: DetachOption = False,
    node_rank: RankOption = None,
    master_addr: MasterOption = None,
    master_port: MasterPortOption = 29501,
    skip_checks: ChecksOption = False,
) -> CommandResult:
    """Start the engine of a profile and stay in the foreground until it is stopped.

    Ctrl-C stops it gracefully, a second Ctrl-C at once. Nothing of it survives this command, however it
    ends; with --detach it runs on, to be found by `k3ctl ps`, `k3ctl logs` and `k3ctl stop`. On several
    nodes run it on each of them: when one fails, all stop.
    """
    from k3ctl.engine import launch
    from k3ctl.profiles import loader
    from k3ctl.profiles.overrides import parse_set
    from k3ctl.profiles.resolve import resolve

    resolved = resolve(loader.load(profile), parse_set(overrides or []), os.environ)
    node = _node(node_rank, master_addr, master_port)
    if not skip_checks:
        _check(resolved.profile)
    signal.signal(signal.SIGTERM, _terminated)
    tell = Narrator()
    engine = launch.launch(resolved, host=host, port=port, node=node, any_version=skip_checks)
    try:
        warnings = _warn(resolved, engine.run)
        tell.line(f"run `{engine.id}`, log {engine.run.engine_log}")
        run = engine.wait_ready(tell.stage)
        where = f"node {run.node_rank} of the server" if run.node_rank else "serving"
        tell.line(f"{where} `{run.served_model_name}` at {run.url}/v1")
        if detach:
            engine.detach()
            return _result(run, warnings, _after_detach(run))
        tell.line("Ctrl-C stops it")
        return _stay(engine, tell, warnings)
    except (KeyboardInterrupt, Terminated) as stopped:
        return _stopped(engine, tell, isinstance(stopped, KeyboardInterrupt))
    except BaseException:
        engine.stop()
        raise


def _node(rank: int | None, address: str | None, port: int) -> Node | None:
    from k3ctl.engine.command import Node

    if rank is None and address is None:
        return None
    if rank is None or address is None:
        raise UsageError("--node-rank and --master-addr belong together: give both")
    return Node(rank, address, port)


def _check(profile: Profile) -> None:
    """Refuse what `k3ctl doctor` knows cannot work on this node."""
    from k3ctl.checks import Severity, evaluate
    from k3ctl.gpus.collect import reading

    here = profile.requires.model_copy(update={"gpus": profile.requires.gpus_per_node, "nodes": 1})
    read = reading()
    findings = evaluate(read.snapshot, read.host, requires=here)
    failed = [finding for finding in findings if finding.severity is Severity.FAIL]
    if failed:
        raise MachineError(
            f"this machine cannot serve `{profile.name}`",
            reasons=[f"{finding.title}: {finding.evidence}" for finding in failed],
            hint=f"`k3ctl doctor --profile {profile.name}` explains; --skip-checks starts all the same",
        )


class Terminated(BaseException):
    """SIGTERM arrived."""


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _stay(engine: RunningEngine, tell: Narrator, warnings: list[str]) -> CommandResult:
    """Wait for the end of the engine, telling what the watch finds."""
    from k3ctl.engine.launch import failure

    told = 0
    while not engine.wait(0.5):
        findings = engine.run.findings
        for finding in findings[told:]:
            tell.line(f"{finding['kind']}: {finding['text']}")
        told = len(findings)
    run = engine.run
    if run.state == "failed":
        raise failure(run)
    tell.line(f"stopped ({run.reason})")
    return _result(run, warnings)


def _stopped(engine: RunningEngine, tell: Narrator, interrupted: bool) -> CommandResult:
    """Stop gracefully; another Ctrl-C or SIGTERM makes it firm."""
    tell.line("stopping; again to stop at once" if interrupted else "stopping")
    while True:
        try:
            engine.stop()
            break
        except (KeyboardInterrupt, Terminated):
            engine.stop_now()
    tell.line("stopped")
    return _result(engine.run, [], code=ExitCode.INTERRUPTED if interrupted else ExitCode.OK)


def _warn(resolved: ResolvedConfig, run: Run) -> list[str]:
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


def _after_detach(run: Run) -> list[str]:
    return [f"{run.url}/v1", f"run {run.id} · k3ctl logs {run.id} · k3ctl stop {run.id}"]


def _result(
    run: Run, warnings: list[str], lines: list[str] | None = None, code: ExitCode = ExitCode.OK
) -> CommandResult:
    from k3ctl.commands.runs import as_data

    blocks = [Lines(lines)] if lines else []
    return CommandResult("k3ctl.serve/1", as_data(run) | {"notes": warnings}, blocks, code)


class Narrator:
    """Tells a start on stderr: a line per stage, a counter in place on a terminal."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._stage = ""
        self._told = 0.0

    def line(self, text: str) -> None:
        """One line."""
        output.note(text)

    def stage(self, stage: Stage) -> None:
        """A new stage, or a counter that moved."""
        now = time.monotonic()
        text = f"{now - self._since:6.1f} s  {stage}"
        if stage.name != self._stage or now - self._told > REPEAT_S:
            output.note(text)
            self._stage, self._told = stage.name, now
        else:
            output.progress(text)
