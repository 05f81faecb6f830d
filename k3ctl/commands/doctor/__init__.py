"""``k3ctl doctor``: what this machine or group can run, and why not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import completion
from k3ctl.errors import ExitCode, MachineError, UsageError, unknown
from k3ctl.output import CommandResult

if TYPE_CHECKING:
    from k3ctl.checks.merge import Gathered
    from k3ctl.profiles.schema import Profile

NODE_LIMIT_S = 60.0

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="merge FILE",
        help="Judge saved reports of several hosts as one group.",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        autocompletion=completion.profiles,
        help="Judge only what this profile needs; exit 3 when it cannot start, 1 when that is not known.",
    ),
]
ExplainOption = Annotated[
    str | None, typer.Option("--explain", metavar="ID", help="Print one rule: meaning, remedy, sources.")
]
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="Judge text captures instead of this machine: nvidia-smi -q, -L, nvlink -s, topo -m, "
        "nvidia-imex-ctl, dcgmi, dmesg, collect_env, shell transcripts. Each subfolder is one host.",
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes", metavar="A,B,...", help="Collect from these hosts with ssh and judge them as one group."
    ),
]
NodeLimitOption = Annotated[
    float, typer.Option("--node-timeout", metavar="S", min=1, help="Time limit for each host of --nodes.")
]
RemoteOption = Annotated[
    str, typer.Option("--remote-k3ctl", metavar="PATH", help="Path of k3ctl on the hosts of --nodes.")
]
ProbeOption = Annotated[
    bool,
    typer.Option(
        "--probe", help="Also copy between all GPU pairs and compare the rates; takes 0.5 GiB per GPU."
    ),
]
ActiveOption = Annotated[
    bool,
    typer.Option(
        "--active",
        help="Also measure: five seconds of memory bandwidth on every GPU, and an NCCL all-reduce, in the environment "
        "of `serve` (with --profile: that profile's). Refused while anything is on a GPU.",
    ),
]
MulticastOption = Annotated[
    bool,
    typer.Option(
        "--probe-multicast",
        help="Also allocate NVLink multicast memory. On shared hosts this can take GPUs out of service: "
        "only where you own every GPU. Never done by default.",
    ),
]


def register(app: typer.Typer, command: Any) -> None:
    """Add ``doctor``."""
    command(
        app,
        "doctor",
        epilog="Examples: k3ctl doctor · k3ctl doctor --json > node.json · k3ctl doctor merge node*.json · "
        "k3ctl doctor --nodes tray0,tray1 · k3ctl doctor --from captures/ · "
        "k3ctl doctor --profile b300-tp8 --active · k3ctl doctor --explain fabric.status",
    )(doctor)


def doctor(
    words: Words = None,
    profile: ProfileOption = None,
    nodes: NodesOption = None,
    captures: FromOption = None,
    explain: ExplainOption = None,
    probe: ProbeOption = False,
    active: ActiveOption = False,
    probe_multicast: MulticastOption = False,
    node_timeout: NodeLimitOption = NODE_LIMIT_S,
    remote_k3ctl: RemoteOption = "k3ctl",
) -> CommandResult:
    """Say what this machine or group can run, and why not. Exits with 1 when something failed.

    Reads GPUs by NVML and the host around them; changes nothing, and takes no GPU memory without --probe or --active.
    """
    if explain:
        return _explain(explain)
    wanted = _profile(profile) if profile else None
    asked = {"--probe": probe, "--active": active, "--probe-multicast": probe_multicast}
    probes = [flag for flag, on in asked.items() if on]
    if sum(map(bool, (words, nodes, captures))) > 1:
        raise UsageError("`merge`, `--nodes` and `--from` are three sources: give one of them")
    if probes and (words or captures):
        raise UsageError(f"{probes[0]} needs the machine itself, not a saved report")
    if words:
        gathered = _merged(words)
    elif captures:
        from k3ctl.checks.captures import read_folder

        gathered = read_folder(captures)
    elif nodes:
        own = ["--profile", profile] if active and profile else []
        gathered = _remote(nodes, [remote_k3ctl, "doctor", "--json", *probes, *own], node_timeout)
    else:
        gathered = _here(probe=probe, probe_multicast=probe_multicast)
        gathered = _measured(gathered, wanted) if active else gathered
    return _judged(gathered, wanted, share=not (words or captures or nodes))


def _here(*, probe: bool, probe_multicast: bool) -> Gathered:
    from k3ctl.checks.merge import Gathered
    from k3ctl.engine import rundir
    from k3ctl.machine.read import read

    here = read(runs=rundir.sessions(), probe=probe, probe_multicast=probe_multicast)
    asked_in_vain = (probe or probe_multicast) and (here.host is None or here.host.probe is None)
    notes = ("nothing was probed: there is no GPU here",) if asked_in_vain else ()
    return Gathered((here,), notes=notes)


def _measured(gathered: Gathered, profile: Profile | None) -> Gathered:
    """This machine with what ``--active`` measured; refused unless every GPU is idle."""
    from dataclasses import replace

    from k3ctl.gpus import active
    from k3ctl.machine import measured
    from k3ctl.profiles import resolve

    (here,) = gathered.machines
    if not here.node.present or here.host is None:
        return replace(gathered, notes=(*gathered.notes, "nothing was measured: there is no GPU here"))
    if refused := active.refusals(here.node.present):
        raise MachineError(
            "--active measures idle GPUs only",
            reasons=refused,
            hint="stop what runs there, or leave --active out",
        )
    own = resolve.resolve(profile, environ=os.environ).env if profile else {}
    found = active.measure(here.node.present, {**os.environ, **own})
    measured.keep(found)
    return replace(gathered, machines=(replace(here, host=replace(here.host, active=found)),))


def _merged(words: list[str]) -> Gathered:
    from k3ctl.checks import merge

    if words[0] != "merge":
        raise unknown("action", words[0], ["merge"])
    if len(words) == 1:
        raise UsageError("`k3ctl doctor merge` needs reports", hint="k3ctl doctor merge node*.json")
    return merge.read(Path(word) for word in words[1:])


def _remote(nodes: str, command: list[str], limit_s: float) -> Gathered:
    from k3ctl.checks import remote

    return remote.collect([name.strip() for name in nodes.split(",") if name.strip()], command, limit_s)


def _judged(gathered: Gathered, profile: Profile | None, *, share: bool) -> CommandResult:
    from k3ctl.checks.report import SCHEMA
    from k3ctl.commands.doctor import render
    from k3ctl.planning.runnable import judge

    report = judge(gathered, profile=profile, profiles=_profiles(), environ=os.environ, share=share)
    code = ExitCode.FAILED if report.undecided else ExitCode.OK
    if report.failed:
        code = ExitCode.MACHINE if profile else ExitCode.FAILED
    return CommandResult(
        SCHEMA,
        report.to_json(),
        render.blocks(report),
        exit_code=code,
        warnings=report.notes,
    )


def _explain(id_: str) -> CommandResult:
    from k3ctl.checks import RULES
    from k3ctl.commands.doctor import render
    from k3ctl.planning.rules import ALL

    plan = {rule.id: rule for rule in ALL}
    if id_ in plan and id_ not in RULES:
        return CommandResult(
            "k3ctl.plan-rule/1", render.plan_rule(plan[id_]), render.plan_rule_blocks(plan[id_])
        )
    if id_ not in RULES:
        raise unknown("rule", id_, [*RULES, *plan])
    return CommandResult("k3ctl.rule/1", RULES[id_].to_json(), render.rule_blocks(RULES[id_]))


def _profile(name: str) -> Profile:
    from k3ctl.profiles import loader

    return loader.load(name)


def _profiles() -> list[Profile]:
    """Every readable profile, for "can run here"; a broken file is for `k3ctl profiles list` to report."""
    from k3ctl.profiles import loader

    out = []
    for name in loader.names():
        try:
            out.append(loader.load(name))
        except UsageError:
            continue
    return out
