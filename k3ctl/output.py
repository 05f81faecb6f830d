"""The only module that prints.

A command returns a ``CommandResult``: data for scripts, blocks for people, an exit code. Data goes to
stdout (a table, or one JSON envelope with ``--json``); narration, warnings and errors go to stderr.
Nothing relies on colour; ``NO_COLOR`` and a stdout that is not a terminal are honoured.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from k3ctl import __version__
from k3ctl.errors import ExitCode, K3Error
from k3ctl.redact import PLAIN

ENVELOPE = "k3ctl.result/1"

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls but line end and tab, marks that change the direction of writing, halves of surrogate pairs."""
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_SIGNS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: "␡"}
_SIGNS |= {ord(char): "\ufffd" for char in map(chr, range(0x80, 0xE000)) if _UNSAFE.match(char)}


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
    """The JSON envelope around a result or an error: always the same seven keys.

    A wrong argument is repeated in an error, and it may be a key: what looks like one is masked.
    """
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
            "message": PLAIN.shown(error.message),
            "hint": error.hint and PLAIN.shown(error.hint),
            "reasons": [PLAIN.shown(reason) for reason in error.reasons],
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
    told = envelope(None, error)["error"]
    note(f"error: {told['message']}")
    for reason in told["reasons"]:
        note(f"  - {reason}")
    if told["hint"]:
        note(f"hint: {told['hint']}")


def printable(text: str) -> str:
    """The text with nothing that a terminal would obey: what it holds comes from logs, servers, other hosts.

    Colours are dropped; other control characters, and characters that reorder what is read, stand as signs of the
    same length. Line ends and tabs stay.
    """
    return _COLOUR.sub("", text).translate(_SIGNS) if _UNSAFE.search(text) else text


def note(text: str) -> None:
    """Narration for people: stderr, one line."""
    end = "\x1b[K" if sys.stderr.isatty() else ""
    print(printable(text) + end, file=sys.stderr, flush=True)


def progress(text: str) -> bool:
    """Narration that the next line replaces, on a terminal; False (and nothing written) elsewhere."""
    if not sys.stderr.isatty():
        return False
    print(f"\r{printable(text)}\x1b[K\r", end="", file=sys.stderr, flush=True)
    return True


def redraw(lines: Sequence[str], drawn: int) -> int:
    """Narration that stays in place: the ``lines``, over the ``drawn`` ones of the last call. On a terminal only.

    Returns how many lines are drawn now; a note in between needs a call without lines first.
    """
    if not sys.stderr.isatty():
        return 0
    width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    up = f"\x1b[{drawn}A" if drawn else ""
    text = "".join(f"{printable(line.replace(chr(10), chr(32)))[: width - 1]}\x1b[K\n" for line in lines)
    print(f"{up}\r\x1b[J{text}", end="", file=sys.stderr, flush=True)
    return len(lines)


def write_text(text: str) -> None:
    """Data for stdout (rendered files, plans, log lines): no wrapping, no colour."""
    _write(printable(text))


def reader_has_gone() -> None:
    """After a ``BrokenPipeError``: nobody reads stdout any more (``k3ctl … | head``), so nothing goes there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_json(value: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity
        text = json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str)
    _write(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _finite(value: Any) -> Any:
    """The value with null for what is no number."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


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
                console.print(printable("\n".join(block.lines)), markup=False, soft_wrap=True)
            else:
                console.print(_rich_table(block))
    _write(text.get())


def _pipe_width() -> int:
    """Width for a stdout that is no terminal: ``COLUMNS`` or wide enough not to cut a cell."""
    return int(os.environ.get("COLUMNS") or 200)


def _rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    # plain strings would be read as markup, which can be a link
    title = Text(printable(table.title)) if table.title else None
    out = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in table.columns:
        justify: Literal["left", "right"] = "right" if column in table.right else "left"
        out.add_column(Text(printable(column)), justify=justify, overflow="fold")
    for row in table.rows:
        out.add_row(*(Text(printable(cell)) for cell in row))
    return out
