"""A load client in its own session: started once, stopped as a whole group, whatever happens to k3ctl.

GuideLLM's workers survive a SIGTERM to their parent and keep sending load, so the group is what is signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from k3ctl.errors import MachineError


class Child:
    """``with Child(argv, …) as child``: leaving the block stops every process of the group."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> None:
        self._argv, self._cwd, self._env, self._log = list(argv), cwd, dict(env), log

    def __enter__(self) -> Child:
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    cwd=self._cwd,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise MachineError(f"cannot start `{self._argv[0]}`: {error.strerror or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id, which is also the group's and the session's."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status of the client, or None while it runs."""
        return self._process.poll()

    def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM the group, wait, SIGKILL what is left; returns when no process of the group exists."""
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
            if not self._signal(number):
                return
            deadline = time.monotonic() + wait_s
            while time.monotonic() < deadline:
                self._process.poll()  # reaps the leader, which would otherwise keep the group alive
                if not self._signal(0):
                    return
                time.sleep(0.05)

    def _signal(self, number: int) -> bool:
        """Signal the group; False when it is gone."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # only zombies of another parent are left
            return False
        return True


def tail(log: Path, lines: int = 5) -> list[str]:
    """The last non-empty lines of a log, for an error message."""
    if not log.is_file():
        return []
    text = log.read_bytes()[-8192:].decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()][-lines:]
