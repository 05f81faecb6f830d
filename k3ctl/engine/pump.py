"""Carries the engine's output from a pipe into a file, and keeps the engine alive when the disk is full.

vLLM's processes would get an error from every ``print`` once the log cannot grow; behind a pipe they
never do. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

CHUNK_BYTES = 1 << 16


class LogPump:
    """Non-blocking copy of ``fd`` to ``path``; bytes that the disk refuses are counted, not waited for."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.lost_bytes = 0
        os.set_blocking(fd, False)
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

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
        if self.lost_bytes:
            data = (
                f"\n[k3ctl] {self.lost_bytes} bytes of log lost: no space left on the disk\n".encode() + data
            )
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._out, view) :]
        except OSError:
            self.lost_bytes += len(view)
        else:
            self.lost_bytes = 0
