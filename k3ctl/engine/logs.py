"""The engine's log: a sequence of files of bounded size, written and read in order.

``engine.log`` is what the engine prints now. A full one becomes ``engine.<n>.log`` with the next number. The first
part is kept for good, because it tells the start, and so are the newest parts; those between are removed.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PART_BYTES = 64 << 20
NEWEST = 4
"""Full parts that are kept besides the first one."""


def numbered(log: Path) -> list[tuple[int, Path]]:
    """Parts of ``log`` with their numbers, oldest first; the last one is ``log`` itself, which need not exist."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(log.parent):
            number = entry.name.removeprefix(f"{log.stem}.").removesuffix(log.suffix)
            if number.isdigit() and entry.name == f"{log.stem}.{number}{log.suffix}":
                found.append((int(number), log.with_name(entry.name)))
    found.sort()
    return [*found, (found[-1][0] + 1 if found else 1, log)]


def parts(log: Path) -> list[Path]:
    """Every file of ``log``, oldest first; ``log`` alone when there is none."""
    return [path for _, path in numbered(log) if path.is_file()] or [log]


def rotate(log: Path) -> None:
    """Close the present part: give it its number, and remove what is neither the first nor among the newest.

    Raises:
        OSError: it cannot be renamed.
    """
    full = numbered(log)
    number = full[-1][0]
    with contextlib.suppress(FileNotFoundError):
        log.rename(log.with_name(f"{log.stem}.{number}{log.suffix}"))
    for _, path in full[1:-NEWEST]:
        path.unlink(missing_ok=True)


def tail(log: Path, limit_bytes: int) -> bytes:
    """The last ``limit_bytes`` of a log, over the borders of its parts.

    Raises:
        OSError: it cannot be read.
    """
    found = b""
    for path in reversed(parts(log)):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            wanted = limit_bytes - len(found)
            file.seek(max(0, size - wanted))
            found = file.read(wanted) + found
        if len(found) >= limit_bytes:
            break
    return found


class LogFollower:
    """New lines of a growing log, part by part. A progress bar's carriage returns end a line too."""

    def __init__(self, path: Path, *, from_end: bool = False, limit_bytes: int = 1 << 16) -> None:
        self._path = path
        self._limit = limit_bytes
        self._number = numbered(path)[-1][0] if from_end else 1
        self._offset = path.stat().st_size if from_end else 0
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Whole lines that arrived since the last call; an overlong line is cut."""
        while True:
            listed = numbered(self._path)
            number, part = next((found for found in listed if found[0] >= self._number), listed[-1])
            if number != self._number:
                # removed before it was read
                self._number, self._offset = number, 0
            try:
                with part.open("rb") as file:
                    if numbered(self._path) != listed:
                        continue  # the name may stand for a younger part by now
                    file.seek(self._offset)
                    while data := file.read(1 << 20):
                        self._offset += len(data)
                        yield from self._split(data)
            except OSError:
                return
            if number == listed[-1][0]:
                return
            self._number, self._offset = number + 1, 0

    def _split(self, data: bytes) -> Iterator[str]:
        *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[: self._limit]
        yield from (line[: self._limit].decode(errors="replace") for line in whole if line)
