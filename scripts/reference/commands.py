"""The reference page of all commands: what ``--help`` says, and the exit codes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from k3ctl import errors
from k3ctl.cli import app

HEAD = """\
# Commands

Every command has `--help`, which says what this page says, and `--json`, which prints one JSON object on stdout instead
of tables. Narration, warnings and errors go to stderr. After an error that is a bug, `k3ctl --debug COMMAND` shows its
traceback.

"""
ENVELOPE = """
## JSON

`--json` prints the same seven keys for every command:

| key | holds |
|---|---|
| `envelope` | `k3ctl.result/1` |
| `k3ctl` | version |
| `schema` | the shape of `data`, for example `k3ctl.doctor/1`; null after an error |
| `exit_code` | the exit code of the command |
| `data` | what the command found; null after an error |
| `warnings` | list of sentences |
| `error` | null, or `code`, `message`, `hint` and `reasons` |
"""


def page() -> str:
    """``commands.md``."""
    return HEAD + "".join(_overview()) + "".join(_exit_codes()) + ENVELOPE + "".join(_sections())


def tree() -> Iterator[tuple[str, Any]]:
    """Every command that ``k3ctl --help`` leads to, with its full name, in that order."""
    yield from _leaves("k3ctl", typer.main.get_command(app))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child, inner in children.items():
        if not inner.hidden:
            yield from _leaves(f"{name} {child}", inner)


def _overview() -> Iterator[str]:
    yield "| command | |\n|---|---|\n"
    for name, command in tree():
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(_paragraphs(command.help)[0])} |\n"


def _exit_codes() -> Iterator[str]:
    yield "\n## Exit codes\n\n| code | means |\n|---|---|\n"
    for code, meaning in exit_codes().items():
        yield f"| {code} | {_cell(meaning)} |\n"


def exit_codes() -> dict[int, str]:
    """Every exit code with the sentence that stands under it in ``errors.py``."""
    (body,) = ast.parse(inspect.getsource(errors.ExitCode)).body
    assert isinstance(body, ast.ClassDef)
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        ast.literal_eval(value.value): ast.literal_eval(text.value)
        for value, text in pairs
        if isinstance(value, ast.Assign) and isinstance(text, ast.Expr)
    }


def _sections() -> Iterator[str]:
    for name, command in tree():
        context = command.make_context(name, [], resilient_parsing=True)
        yield f"\n## {name}\n\n"
        yield f"`{name} {' '.join(command.collect_usage_pieces(context))}`\n\n"
        yield "\n\n".join(_paragraphs(command.help)) + "\n\n"
        yield "| argument or option | |\n|---|---|\n"
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record and "--help" not in record[0]:
                yield f"| `{_cell(record[0].strip())}` | {_cell(_plain(record[1]))} |\n"
        yield from _examples(command.epilog)


def _examples(epilog: str | None) -> Iterator[str]:
    lines = examples(epilog or "")
    if lines:
        yield "\n```\n" + "\n".join(lines) + "\n```\n"


def examples(epilog: str) -> list[str]:
    """The command lines of an epilog, each perhaps with a comment that says what it does."""
    text = re.sub(r"^Examples?:\s*", "", epilog)
    parts = re.split(r"\s+·\s+|\n+", text)
    lines = [part.strip() for part in parts if "k3ctl" in part]
    plain = [line.split("`")[1] if line.startswith("`") else line for line in lines]
    return [re.sub(r"\s{2,}", "  # ", line, count=1) for line in plain]


def _paragraphs(text: str | None) -> list[str]:
    return [_plain(part) for part in re.split(r"\n\s*\n", inspect.cleandoc(text or ""))]


def _plain(text: str) -> str:
    return " ".join(text.replace("\b", "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
