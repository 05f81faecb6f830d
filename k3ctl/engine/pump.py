"""Carries the engine's output from a pipe into a file, and keeps the engine alive when the disk is full.

vLLM's processes would get an error from every ``print`` once the log cannot grow; behind a pipe they
never do. The file is rotated before it grows without bound (``logs``). Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from k3ctl.engine import logs

CHUNK_BYTES = 1 << 16


class LogPump:
    """Non-blocking copy of ``fd`` to ``path``; bytes that the disk refuses are counted, not waited for."""

    def __init__(self, fd: int, path: Path, part_bytes: int = logs.PART_BYTES) -> None:
        self.fd = fd
        self.lost_bytes = 0
        os.set_blocking(fd, False)
        self._path = path
        self._part_bytes = part_bytes
        self._out = _append(path)
        self._size = os.fstat(self._out).st_size

    def copy(self) -> bool:
        """Copy what is there. False at the end of the pipe."""
        while True:
            try:
                data = os.read(self.fd, CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._write(data)

    def note(self, text: str) -> None:
        """Add a line of our own."""
        self._write(f"[k3ctl] {text}\n".encode())

    def close(self) -> None:
        """Close both ends."""
        os.close(self.fd)
        os.close(self._out)

    def _write(self, data: bytes) -> None:
        if self._size + len(data) >= self._part_bytes:
            # parts end with whole lines, as far as there are any
            end = data.rfind(b"\n") + 1 or len(data)
            self._put(data[:end])
            self._rotate()
            data = data[end:]
        if data:
            self._put(data)

    def _put(self, data: bytes) -> None:
        if self.lost_bytes:
            data = (
                f"\n[k3ctl] {self.lost_bytes} bytes of log lost: no space left on the disk\n".encode() + data
            )
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._out, view)
                self._size += written
                view = view[written:]
        except OSError:
            self.lost_bytes += len(view)
        else:
            self.lost_bytes = 0

    def _rotate(self) -> None:
        """Go on in a new file; where that cannot be, in the old one."""
        with contextlib.suppress(OSError):
            logs.rotate(self._path)
            out = _append(self._path)
            os.close(self._out)
            self._out, self._size = out, 0


def _append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
