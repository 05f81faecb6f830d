"""Commands as pages, help texts and messages show them, and what is wrong with one."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from k3ctl.checks import RULES
from k3ctl.cli import app
from k3ctl.loadtest import workload
from k3ctl.profiles import arguments
from k3ctl.profiles.loader import load_all
from scripts.reference.commands import tree

from .pages import split

INLINE = re.compile(r"`(?:\$ )?(k3ctl\b[^`\n]*)`")
PLACEHOLDER = re.compile(r"…|\.\.\.|^[A-Z][A-Z0-9_]*$")
ROOT_OPTIONS = ("--debug", "--version", "--help", "-h")


@cache
def program() -> Any:
    """The whole program's command."""
    return typer.main.get_command(app)


@cache
def leaves() -> dict[str, Any]:
    """Every command by its full name."""
    return dict(tree())


@cache
def profiles() -> frozenset[str]:
    """The names of all profiles."""
    return frozenset(profile.name for profile in load_all())


@cache
def presets() -> frozenset[str]:
    """The presets, and the words that the help of `bench` names in their place."""
    (parameter,) = (one for one in leaves()["k3ctl bench"].params if one.name == "preset")
    return frozenset([*workload.names(), *re.findall(r"`(\w+)`", parameter.help)])


def blocks(text: str) -> Iterator[str]:
    """The k3ctl command lines in a page's code, continued lines joined."""
    joined = "\n".join(split(text)[1]).replace("\\\n", " ")
    for line in joined.splitlines():
        if "─" in line:
            continue  # a drawing
        if shown := re.match(r"\s*(?:\$ )?((?:[A-Z][A-Z0-9_]*=\S+ )*k3ctl .*)$", line):
            yield shown[1]


def inline(text: str) -> Iterator[str]:
    """The k3ctl commands in backticks."""
    for line in split(text)[0]:
        yield from INLINE.findall(line)


def messages(path: Path) -> Iterator[str]:
    """The k3ctl commands in backticks in a module's strings; a placeholder stands for what is filled in."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "`k3ctl" in text else ():
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else " X " for part in node.values]
            yield from INLINE.findall("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from INLINE.findall(" ".join(node.value.split()))


def words(line: str) -> list[str]:
    """The words of the first command of a line, without comments, ellipses and what follows a pipe."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        found.append(word)
    while found and "=" in found[0]:
        found.pop(0)
    return [word for word in found if word != "…"]


def resolved(found: list[str]) -> tuple[str, Any, list[str]]:
    """The longest name of a command or group that the words begin with, the command or group, the rest."""
    command, name, rest = program(), "k3ctl", found[1:]
    while rest and rest[0] in ROOT_OPTIONS:
        rest = rest[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, name, rest = command.commands[rest[0]], f"{name} {rest[0]}", rest[1:]
    return name, command, rest


def strictly(line: str) -> str | None:
    """What the program would say against this line as it stands, and unknown names in it; None when nothing."""
    if "…" in line:
        return loosely(line)
    name, command, rest = resolved(words(line))
    if getattr(command, "commands", None) is not None:
        return None if not rest and line.endswith(("--help", "-h", "k3ctl")) else f"no command: {line}"
    rest = [word for word in rest if word not in ("--help", "-h")]
    try:
        context = command.make_context(name, ["1" if word == "N" else word for word in rest])
    except Exception as error:  # typer vendors click: its errors are known by shape
        told = getattr(error, "format_message", None)
        return f"{line}: {told() if told else error}"
    return unknown_name(name, context.params)


def loosely(line: str) -> str | None:
    """The same where only a part of a command may be shown: the command and every option that is there exist."""
    name, command, rest = resolved(words(line))
    children = getattr(command, "commands", None)
    if children is not None:
        left = [word for word in rest if not PLACEHOLDER.search(word) and word not in ROOT_OPTIONS]
        return f"no command: {line}" if left else None
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    asked = {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    return f"{name} has no {', '.join(lost)}" if (lost := sorted(asked - known - set(ROOT_OPTIONS))) else None


def unknown_name(name: str, given: dict[str, Any]) -> str | None:
    """A profile, preset, rule or vLLM argument that does not exist."""
    checks = [
        ("profile", given.get("profile"), profiles()),
        ("profile", given.get("name") if name == "k3ctl profiles show" else None, profiles()),
        ("preset", given.get("preset") if name == "k3ctl bench" else None, presets()),
        ("rule", given.get("explain"), set(RULES)),
    ]
    for kind, value, known in checks:
        named = isinstance(value, str) and not value.endswith(".yaml") and not PLACEHOLDER.search(value)
        if named and value and value not in known:
            return f"no {kind} `{value}`"
    keys = [override.split("=")[0].split(".")[0] for override in given.get("overrides") or ()]
    lost = [
        key for key in keys if key != "env" and not PLACEHOLDER.search(key) and key not in arguments.known()
    ]
    return f"vLLM has no argument {lost[0]}" if lost else None
