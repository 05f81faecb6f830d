"""The start of several nodes on a terminal: a line for each node in place, everything else above them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from k3ctl.commands.serve.board import Board

HOSTS = ("tray0", "chatty10")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Callable[[], list[str]]]]:
    """Called in a test it makes a terminal of 60 columns stderr, and gives what tells the lines that stand on it."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    os.set_blocking(reading, False)
    stream = os.fdopen(writing, "w")
    written = bytearray()

    def lines() -> list[str]:
        stream.flush()
        try:
            while True:
                written.extend(os.read(reading, 1 << 16))
        except BlockingIOError:
            return shown(written.decode())

    def begin() -> Callable[[], list[str]]:
        monkeypatch.setattr(sys, "stderr", stream)  # not before: pytest sets its own for each phase
        return lines

    yield begin
    stream.close()
    os.close(reading)


def shown(text: str) -> list[str]:
    """What a terminal makes of it: of the sequences only those that the board uses."""
    screen, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\d*[AJK]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row += 1
            screen += [""] * (row + 1 - len(screen))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part[0] == "\x1b":
            row -= int(part[2:-1])
            assert row >= 0
        elif part == "\x1b[J":
            screen[row] = screen[row][:column]
            del screen[row + 1 :]
        elif part == "\x1b[K":
            screen[row] = screen[row][:column]
        else:
            screen[row] = screen[row][:column] + part + screen[row][column + len(part) :]
            column += len(part)
    return [re.sub(r"^ *[\d.]+ s  ", "", line) for line in screen if line]


def hear(board: Board, host: str, stage: str, kind: str = "stage", **message: object) -> None:
    board.hear(SimpleNamespace(host=host, stage=stage), kind, message)


def test_every_node_has_one_line_and_what_is_told_stands_above(screen) -> None:
    terminal = screen()
    board = Board(HOSTS)
    board.line("group g")
    for stage in ("starting", "loading weights 1/3", "loading weights 2/3"):
        for host in HOSTS:
            hear(board, host, stage)
    assert terminal() == ["group g", "tray0     loading weights 2/3", "chatty10  loading weights 2/3"]
    hear(board, "tray0", "ready", "note", text="warning: w")
    assert terminal() == ["group g", "warning: w", "tray0     ready", "chatty10  loading weights 2/3"]


def test_after_the_end_lines_stay_and_changes_are_lines_of_their_own(screen) -> None:
    terminal = screen()
    board = Board(HOSTS)
    hear(board, "tray0", "ready")
    board.end()
    board.line("serving")
    hear(board, "tray0", "stopped", "ended")
    assert terminal() == ["tray0     ready", "chatty10  connecting", "serving", "tray0     stopped"]


def test_a_stage_longer_than_the_terminal_takes_one_line(screen) -> None:
    terminal = screen()
    board = Board(HOSTS)
    for _ in range(3):
        hear(board, "tray0", "x" * 200 + "\nsecond line")
        hear(board, "tray0", "short")
    assert terminal() == ["tray0     short", "chatty10  connecting"]
