"""Lines of a log that can matter, with their numbers in their file. Memory does not grow with the file.

Left out are only lines that are known to say nothing: requests that were answered, and INFO lines without any text
that a rule, a detector or a fact looks for. A line of any other level, or of none, is never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 16
_BYTES = "latin-1"
"""One character a byte, whatever the log's encoding: searching text is several times as fast as searching bytes."""

_ANSWERED = re.compile(r'HTTP/1\.1\\?" [23]')


class Reader:
    """One open file. ``lines`` and ``size_bytes`` are what has been read so far."""

    def __init__(self, file: BinaryIO, marks: Sequence[str]) -> None:
        self._file = file
        self._marks = _in_raw_lines(marks)
        self._answered = False
        self.lines = 0
        self.size_bytes = 0

    def marked(self) -> Iterator[tuple[int, str]]:
        """(line number, line) for every line that can matter."""
        rest = b""
        while block := self._file.read(BLOCK_BYTES):
            self.size_bytes += len(block)
            whole, newline, tail = (rest + block).rpartition(b"\n")
            # a "line" without an end is cut: no log writes megabytes in one, a binary file does
            rest = tail[:BLOCK_BYTES]
            if newline:
                yield from self._in(whole.decode(_BYTES).split("\n"))
        if rest:
            yield from self._in([rest.decode(_BYTES)])

    def _in(self, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
        number = self.lines
        for line in lines:
            number += 1
            if "HTTP/1.1" in line and _ANSWERED.search(line):
                if self._answered:
                    continue
                # the first answer proves that the server was ready
                self._answered = True
            if " INFO " in line and not _holds(line, self._marks):
                continue
            self.lines = number
            yield number, line[:MAX_LINE_BYTES].encode(_BYTES).decode(errors="replace")
        self.lines = number


def _holds(line: str, texts: tuple[str, ...]) -> bool:
    for text in texts:  # noqa: SIM110 (twice as fast as `any`, and most of the time is spent here)
        if text in line:
            return True
    return False


def _in_raw_lines(marks: Iterable[str]) -> tuple[str, ...]:
    """The longest part of each mark that stands in a raw line also where a carrier escaped it (JSON)."""
    safe = (max(re.split(r"[^ !#-;=?-\[\]-~]", text), key=len) for text in marks)
    # journald writes a line with colours as a list of bytes: nothing can be found in it
    return (*dict.fromkeys(mark for mark in safe if mark), '"MESSAGE":[', '"MESSAGE" : [')
