"""The lead's end of the connection to one node: an ssh whose remote command is ``k3ctl member``."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from k3ctl.host import ssh
from k3ctl.rack import wire

END_S = 3.0
"""How long an ssh may take to end after its input was closed."""

Inbox = queue.Queue[tuple[int, dict[str, Any]]]
"""(rank, message); the kind ``closed`` is this module's: the ssh has ended, with ``code`` and what it ``said``."""


class Channel:
    """One ssh. What comes is put into ``inbox`` by a thread; sending never blocks."""

    def __init__(
        self, rank: int, host: str, command: Sequence[str], inbox: Inbox, *, connect_s: float
    ) -> None:
        self.host = host
        self._rank = rank
        self._inbox = inbox
        self._lock = threading.Lock()
        self._said = bytearray()
        # a session of its own: Ctrl-C in the operator's terminal is the lead's to answer
        self._process = subprocess.Popen(
            ssh.argv(host, command, connect_s, watched=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._listening = threading.Thread(target=self._listen_to_errors, daemon=True)
        self._listening.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, kind: str, **fields: Any) -> bool:
        """Send a message; False when it did not go out whole: the connection is dead or stuck."""
        data = wire.line(kind, **fields)
        assert self._process.stdin is not None
        with self._lock:
            try:
                return os.write(self._process.stdin.fileno(), data) == len(data)
            except (OSError, ValueError):
                return False

    def close(self) -> None:
        """End the ssh: orderly when it can, by force when it cannot."""
        with self._lock, contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while text := stream.readline(wire.MAX_LINE):
                if (found := wire.message(text)) is not None and found["k3"] != "closed":
                    self._inbox.put((self._rank, found))
        code = self._process.wait()
        self._listening.join(1.0)
        said = bytes(self._said).decode(errors="replace")
        self._inbox.put((self._rank, {"k3": "closed", "code": code, "said": said}))

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while data := os.read(stream.fileno(), 4096):
                self._said = (self._said + data)[-8192:]
