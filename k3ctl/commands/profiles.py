"""``k3ctl profiles``: which configurations there are, and what each one starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import completion
from k3ctl.output import Block, CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.profiles.resolve import ResolvedConfig
    from k3ctl.profiles.schema import Profile

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Profile name, or a .yaml file.", autocompletion=completion.profiles),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a vLLM argument by its own name; repeatable."),
]
OriginOption = Annotated[bool, typer.Option("--origin", help="Say where every value comes from.")]


def register(app: typer.Typer, command: Any) -> None:
    """Add the ``profiles`` group."""
    group = typer.Typer(name="profiles", help="List and show serving profiles.", no_args_is_help=True)
    command(group, "list", epilog="Example: k3ctl profiles list --json")(list_profiles)
    command(
        group,
        "show",
        epilog="Examples: k3ctl profiles show cpu-tiny · "
        "k3ctl profiles show gb300-tp16 --origin --set speculative_config.num_speculative_tokens=3",
    )(show)
    command(
        group,
        "mark-validated",
        epilog="Example: k3ctl profiles mark-validated gb300-tp16 runs/gb300-tp16.k3b.tar.gz",
    )(mark_validated)
    app.add_typer(group)


def mark_validated(
    name: NameArgument,
    bundle: Annotated[
        Path, typer.Argument(help="Bundle of `k3ctl validate canary features` (directory or archive).")
    ],
) -> CommandResult:
    """Write `status: validated` into a profile, if a bundle shows that it is.

    The bundle must verify, be of this very profile without overrides, on its hardware and vLLM, with every check
    finished and none failed, void or unknown. Exit 1 with every reason when it does not.
    """
    from k3ctl.bundle import archive
    from k3ctl.profiles import loader, marking
    from k3ctl.validate import receipt

    profile = loader.load(name)
    with archive.opened(bundle) as directory:
        found = receipt.of_bundle(directory, profile)
    marking.write(profile, found)
    lines = [
        f"{profile.file}: status: validated (bundle {found.bundle}, {found.checks_passed} checks passed)"
    ]
    lines += [f"not shown: {text}" for text in found.not_shown]
    data = {"profile": profile.name, "file": profile.file, "validation": found.model_dump(mode="json")}
    return CommandResult("k3ctl.profiles.mark-validated/1", data, [Lines(lines)])


def list_profiles() -> CommandResult:
    """List the profiles: shipped ones, and your own directories."""
    from k3ctl.profiles import loader

    found, problems = loader.load_readable()
    rows = [[p.name, _hardware(p), p.goal, p.status, p.summary] for p in found]
    data = {
        "directories": [str(path) for path in loader.directories()],
        "profiles": [
            {"name": p.name, "summary": p.summary, "status": p.status, "goal": p.goal, "file": p.file}
            | {"requires": p.requires.model_dump(mode="json")}
            for p in found
        ],
    }
    table = Table(["profile", "hardware", "for", "status", "summary"], rows)
    return CommandResult("k3ctl.profiles/1", data, [table], warnings=problems)


def show(name: NameArgument, overrides: SetOption = None, origin: OriginOption = False) -> CommandResult:
    """Show one profile resolved: evidence, the vLLM command line, the environment."""
    import shlex

    from k3ctl.profiles import loader
    from k3ctl.profiles.overrides import parse_set
    from k3ctl.profiles.resolve import resolve
    from k3ctl.profiles.vllm_args import argv

    profile = loader.load(name)
    resolved = resolve(profile, parse_set(overrides or []), os.environ)
    words = ["vllm", "serve", *argv(resolved)]
    data = {
        "profile": profile.model_dump(mode="json", by_alias=True),
        "file": profile.file,
        "model": resolved.model,
        "args": dict(resolved.args),
        "env": dict(resolved.env),
        "argv": words,
        "origins": {key: {"source": o.source, "detail": o.detail} for key, o in resolved.origins.items()},
    }
    blocks: list[Block] = [Lines(_summary(profile))]
    if origin:
        blocks.append(_origins(resolved))
    else:
        env = [f"{key}={shlex.quote(value)}" for key, value in resolved.env.items()]
        blocks.append(Lines(["", *env, shlex.join(words)]))
    return CommandResult("k3ctl.profile/1", data, blocks)


def _hardware(profile: Profile) -> str:
    requires = profile.requires
    if not requires.gpus:
        return "CPU"
    nodes = f", {requires.nodes} nodes" if requires.nodes > 1 else ""
    return f"{requires.gpus}× {'/'.join(requires.gpu)}{nodes}"


def _summary(profile: Profile) -> list[str]:
    lines = [
        f"{profile.name}: {profile.summary}",
        f"status: {profile.status} · hardware: {_hardware(profile)}",
    ]
    if profile.extends:
        lines.append(f"extends: {profile.extends}")
    for item in profile.evidence:
        tail = " · ".join(
            part for part in (item.by, item.when, item.versions, item.conditions, item.link) if part
        )
        lines.append(f"evidence: {item.what} ({tail})")
    lines += [f"note: {note}" for note in profile.notes]
    for anchor in profile.expect.anchors:
        lines.append(
            f"published {anchor.id}: {anchor.result} ({anchor.conditions}; {anchor.source}, {anchor.when})"
        )
    return lines


def _origins(resolved: ResolvedConfig) -> Table:
    rows = []
    for key, origin in resolved.origins.items():
        value = resolved.env[key.removeprefix("env.")] if key.startswith("env.") else resolved.get(key)
        rows.append([key, str(value), origin.source, origin.detail])
    return Table(["key", "value", "origin", "where"], rows)
