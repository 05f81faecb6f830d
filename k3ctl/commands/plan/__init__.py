"""``k3ctl plan``: choose a configuration, explain it, and refuse what cannot work before anything loads."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import completion
from k3ctl.errors import ExitCode, MachineError, UsageError, unknown
from k3ctl.output import Block, CommandResult, Lines

if TYPE_CHECKING:
    from k3ctl.planning.hardware import Hardware
    from k3ctl.planning.plan import Plan

EPILOG = (
    "Examples: k3ctl plan --hardware GB300:16 · k3ctl plan gb300-tp16 --concurrency 16 · "
    "k3ctl plan b300-tp8 --render kubernetes --out deploy/ · k3ctl plan gb300-tp8 --actual engine.log · "
    "k3ctl plan --run 3f9a"
)

ProfileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROFILE]",
        help="Profile name or .yaml file; without it, rank all.",
        autocompletion=completion.profiles,
    ),
]
HardwareOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hardware",
        metavar="FILE|PRODUCT:N",
        help="Snapshot of `k3ctl doctor --json` (repeat for several hosts), or e.g. GB300:16. Default: this host.",
    ),
]
ObjectiveOption = Annotated[
    str, typer.Option("--for", metavar="GOAL", help="latency, throughput or long-context: what to rank by.")
]
ConcurrencyOption = Annotated[int | None, typer.Option(help="Concurrent requests to expect.", min=1)]
InputOption = Annotated[int | None, typer.Option(help="Prompt length in tokens.", min=1)]
OutputOption = Annotated[int | None, typer.Option(help="Answer length in tokens.", min=1)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a vLLM argument by its own name; repeatable."),
]
VllmOption = Annotated[
    str | None,
    typer.Option(
        "--vllm-version",
        help="vLLM that will run it; default: the installed one, else 0.33.0.",
        metavar="VERSION",
    ),
]
ModelOption = Annotated[str | None, typer.Option(help="Serve the weights in this directory.", metavar="DIR")]
RenderOption = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="command, config, nodes, ray, slurm, kubernetes or systemd."),
]
OutOption = Annotated[Path | None, typer.Option(help="Write the rendered files here.", metavar="DIR")]
DirectoryOption = Annotated[
    str, typer.Option(help="Where rendered files will lie on the hosts.", metavar="DIR")
]
ImageOption = Annotated[str, typer.Option(help="Container image with vLLM and k3ctl.", metavar="IMAGE")]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="Plan what this run of `k3ctl serve` was started with, beside what its log says.",
        metavar="RUN",
        autocompletion=completion.runs,
    ),
]
ActualOption = Annotated[
    str | None,
    typer.Option(metavar="FILE|URL", help="Engine log or /metrics to compare the memory plan with."),
]
CheckOption = Annotated[bool, typer.Option(help="Ask the installed vLLM itself as well; about 20 s.")]
PythonOption = Annotated[str | None, typer.Option(help="Interpreter with vLLM.", metavar="FILE")]


def register(app: typer.Typer, command: Any) -> None:
    """Add the ``plan`` command."""
    command(app, "plan", epilog=EPILOG)(plan)


def plan(
    profile: ProfileArgument = None,
    hardware: HardwareOption = None,
    objective: ObjectiveOption = "latency",
    concurrency: ConcurrencyOption = None,
    input_tokens: InputOption = None,
    output_tokens: OutputOption = None,
    overrides: SetOption = None,
    vllm_version: VllmOption = None,
    model: ModelOption = None,
    render: RenderOption = None,
    out: OutOption = None,
    directory: DirectoryOption = "/etc/k3ctl",
    image: ImageOption = "vllm-k3ctl:0.33.0",
    actual: ActualOption = None,
    check_with_vllm: CheckOption = False,
    python: PythonOption = None,
    run: RunOption = None,
) -> CommandResult:
    """Say what a configuration needs, whether it can run, and how fast it may be; or choose one.

    Every reason against it is listed at once, with the nearest alternative. Speeds and memory are estimates.
    """
    from k3ctl.commands.plan import report
    from k3ctl.planning.proposal import Workload

    workload = Workload(concurrency, input_tokens, output_tokens)
    made: Plan | None = None
    if run is not None:
        if profile or overrides or model:
            raise UsageError("--run plans what was started: leave out the profile, --set and --model")
        made, log = _started(run, hardware, workload, vllm_version)
        actual = actual or log
        profile = made.deployment.config.profile.name
    vllm = _version(vllm_version)
    if profile is None:
        if overrides or render or actual or check_with_vllm or model:
            raise UsageError("name a profile for that", hint="`k3ctl profiles list` shows them")
        return _choose(hardware, objective, workload, vllm)
    made = made or _plan(profile, overrides, model, hardware, workload, vllm)
    if render is not None:
        return _render(made, render, out, directory, image)
    data: dict[str, Any] = made.json()
    blocks: list[Block] = report.plan_blocks(made)
    blocked = not made.can_run
    if actual is not None:
        blocks.append(_compare(made, actual, data))
    if check_with_vllm:
        blocked |= _ask_vllm(made, python, data, blocks)
    code = ExitCode.MACHINE if blocked else ExitCode.OK if made.certain else ExitCode.FAILED
    return CommandResult("k3ctl.plan/1", data, blocks, exit_code=code, warnings=_unseen(made))


def _unseen(made: Plan) -> list[str]:
    """Say when the hardware was taken on trust."""
    requires = made.deployment.config.profile.requires
    if made.deployment.hardware is not None or not requires.gpus:
        return []
    hosts = f"of each of the {requires.nodes} hosts" if requires.nodes > 1 else "of the host"
    return [f"no hardware was looked at; give `--hardware` with the `k3ctl doctor --json` {hosts}"]


def _choose(hardware: list[str] | None, objective: str, workload: Any, vllm: str) -> CommandResult:
    from k3ctl.commands.plan import report
    from k3ctl.planning import detect
    from k3ctl.planning.selection import Objective, select
    from k3ctl.profiles import loader

    if objective not in {goal.value for goal in Objective}:
        raise unknown("goal", objective, [goal.value for goal in Objective])
    found = detect.given(hardware) if hardware else detect.this_host()
    profiles, problems = loader.load_readable()
    selection = select(profiles, found, Objective(objective), workload, vllm)
    blocks = report.selection_blocks(selection)
    if selection.chosen:
        blocks += report.plan_blocks(selection.chosen.plan)
    code = ExitCode.MACHINE
    if selection.chosen:
        code = ExitCode.OK if selection.chosen.plan.certain else ExitCode.FAILED
    return CommandResult("k3ctl.selection/1", selection.json(), blocks, exit_code=code, warnings=problems)


def _plan(
    profile: str,
    overrides: list[str] | None,
    model: str | None,
    hardware: list[str] | None,
    workload: Any,
    vllm: str,
) -> Plan:
    from k3ctl.planning.plan import make
    from k3ctl.planning.proposal import Proposal
    from k3ctl.profiles import loader
    from k3ctl.profiles.overrides import parse_set
    from k3ctl.profiles.resolve import resolve

    resolved = resolve(loader.load(profile), parse_set(overrides or []), os.environ)
    if model is not None:
        resolved = resolved.with_model_path(model)
    return make(Proposal(resolved, _hardware(hardware, resolved.profile.requires.nodes), workload, vllm))


def _started(
    name: str, hardware: list[str] | None, workload: Any, vllm: str | None
) -> tuple[Plan, str | None]:
    """The plan of what a run was started with, and its log where that has figures to compare with."""
    from k3ctl.engine import logs, record, rundir
    from k3ctl.planning import actual
    from k3ctl.planning.plan import make
    from k3ctl.planning.proposal import Proposal

    run = rundir.find(name)
    config = record.config(run)
    if config is None:
        raise UsageError(f"run `{run.id}` keeps no record of its start", hint="an older k3ctl started it")
    here = _hardware(hardware, config.profile.requires.nodes) if config.profile.requires.gpus else None
    made = make(Proposal(config, here, workload, _version(vllm or run.vllm or None)))
    first = next(iter(logs.parts(run.engine_log)), run.engine_log)
    with contextlib.suppress(UsageError):
        if made.memory is not None and actual.parse(actual.read(str(first))):
            return made, str(first)
    return made, None


def _hardware(entries: list[str] | None, nodes: int) -> Hardware | None:
    """The given hardware, or this host; None where this host cannot stand for the deployment."""
    from k3ctl.planning import detect

    if entries:
        return detect.given(entries)
    found = detect.this_host()
    return found if found.gpus and nodes == 1 else None


def _render(made: Plan, name: str, out: Path | None, directory: str, image: str) -> CommandResult:
    from k3ctl.planning.render import Site, render, write

    if not made.can_run:
        reasons = [f"{reason.evidence}: {reason.remedy}" for reason in made.blocking]
        raise MachineError("not rendered: this configuration cannot run", reasons=reasons)
    files = render(made.deployment.config, name, Site(directory=directory, image=image))
    if out is None:
        heads = [f"# ===== {file}\n" if len(files) > 1 else "" for file in files]
        lines = [head + text.rstrip("\n") for head, text in zip(heads, files.values(), strict=True)]
    else:
        lines = [str(path) for path in write(files, out)]
    return CommandResult("k3ctl.rendered/1", {"format": name, "files": dict(files)}, [Lines(lines)])


def _compare(made: Plan, source: str, data: dict[str, Any]) -> Block:
    from k3ctl.commands.plan import report
    from k3ctl.planning import actual

    if made.memory is None:
        raise UsageError(
            "there is no memory plan to compare with: the CPU engine's cache is set, not planned"
        )
    rows = actual.compare(made.memory, actual.parse(actual.read(source), source))
    data["actual"] = [row.json() for row in rows]
    return report.comparison_table(rows)


def _ask_vllm(made: Plan, python: str | None, data: dict[str, Any], blocks: list[Block]) -> bool:
    """Add vLLM's answer; whether it means that the deployment cannot start."""
    from k3ctl.commands.plan import report
    from k3ctl.planning import vllm_check

    if made.deployment.on_cpu:
        raise UsageError("the check builds a CUDA configuration; a CPU profile is checked by serving it")
    answer = vllm_check.check(made, python)
    data["vllm_check"] = answer.json()
    blocks.append(report.vllm_lines(answer))
    refused = answer.unsupported is not None and made.deployment.specialized
    return answer.error is not None or refused


def _version(given: str | None) -> str:
    """The given version, else the one of the vLLM installed beside k3ctl, else the one k3ctl is written for."""
    from importlib import metadata

    from packaging.version import InvalidVersion, Version

    try:
        return Version(given or metadata.version("vllm")).public
    except metadata.PackageNotFoundError:
        return "0.33.0"
    except InvalidVersion as error:
        raise UsageError(f"`{given}` is no version", hint="for example 0.33.0") from error
