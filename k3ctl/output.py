"""The only module that prints.

A command returns a ``CommandResult``: data for scripts, blocks for people, an exit code. Data goes to
stdout (a table, or one JSON envelope with ``--json``); narration, warnings and errors go to stderr.
Nothing relies on colour; ``NO_COLOR`` and a stdout that is not a terminal are honoured.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3ctl import __version__
from k3ctl.errors import ExitCode, K3Error

ENVELOPE = "k3ctl.result/1"


@dataclass(frozen=True)
class Table:
    """A titled table; cells are already formatted text. ``right`` names right-aligned columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    right: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lines:
    """Plain lines of text."""

    lines: Sequence[str]


Block = Table | Lines


@dataclass(frozen=True)
class CommandResult:
    """What a command has to say.

    ``schema`` names the shape of ``data`` (for example ``k3ctl.doctor/1``); ``data`` must be JSON-able.
    """

    schema: str
    data: Mapping[str, Any]
    blocks: Sequence[Block] = ()
    exit_code: ExitCode = ExitCode.OK
    warnings: Sequence[str] = field(default_factory=tuple)


def envelope(result: CommandResult | None, error: K3Error | None = None) -> dict[str, Any]:
    """The JSON envelope around a result or an error: always the same seven keys."""
    code = error.exit_code if error else result.exit_code if result else ExitCode.OK
    return {
        "envelope": ENVELOPE,
        "k3ctl": __version__,
        "schema": result.schema if result else None,
        "exit_code": int(code),
        "data": dict(result.data) if result else None,
        "warnings": list(result.warnings) if result else [],
        "error": None
        if error is None
        else {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "reasons": list(error.reasons),
        },
    }


def emit(result: CommandResult, *, as_json: bool) -> None:
    """Write a result: blocks for people, or one JSON object. A reader that has gone changes no exit code."""
    try:
        if as_json:
            _write_json(envelope(result))
            return
        for warning in result.warnings:
            note(f"warning: {warning}")
        _print_blocks(result.blocks)
    except BrokenPipeError:
        reader_has_gone()


def emit_error(error: K3Error, *, as_json: bool) -> None:
    """Write an error: one line and a hint on stderr, or the JSON envelope on stdout."""
    if as_json:
        _write_json(envelope(None, error))
        return
    note(f"error: {error.message}")
    for reason in error.reasons:
        note(f"  - {reason}")
    if error.hint:
        note(f"hint: {error.hint}")


def note(text: str) -> None:
    """Narration for people: stderr, one line."""
    print(text + ("\x1b[K" if sys.stderr.isatty() else ""), file=sys.stderr, flush=True)


def progress(text: str) -> bool:
    """Narration that the next line replaces, on a terminal; False (and nothing written) elsewhere."""
    if not sys.stderr.isatty():
        return False
    print(f"\r{text}\x1b[K\r", end="", file=sys.stderr, flush=True)
    return True


def write_text(text: str) -> None:
    """Raw data for stdout (rendered files, plans): no wrapping, no colour."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def reader_has_gone() -> None:
    """After a ``BrokenPipeError``: nobody reads stdout any more (``k3ctl … | head``), so nothing goes there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_json(value: Mapping[str, Any]) -> None:
    write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _print_blocks(blocks: Sequence[Block]) -> None:
    if not blocks:
        return
    if all(isinstance(block, Lines) for block in blocks):
        for block in blocks:
            assert isinstance(block, Lines)
            write_text("\n".join(block.lines))
        return
    from rich.console import Console

    console = Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else _pipe_width(),
        soft_wrap=False,
        highlight=False,
    )
    with console.capture() as text:  # rich ends the process when its reader has gone
        for block in blocks:
            if isinstance(block, Lines):
                console.print("\n".join(block.lines), markup=False, soft_wrap=True)
            else:
                console.print(_rich_table(block))
    write_text(text.get())


def _pipe_width() -> int:
    """Width for a stdout that is no terminal: ``COLUMNS`` or wide enough not to cut a cell."""
    return int(os.environ.get("COLUMNS") or 200)


def _rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(title=table.title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in table.columns:
        out.add_column(column, justify="right" if column in table.right else "left", overflow="fold")
    for row in table.rows:
        out.add_row(*(Text(cell) for cell in row))
    return out
