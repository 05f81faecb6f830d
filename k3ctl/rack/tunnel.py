"""A way to a group's server that listens on node 0's loopback only: a port of this machine, forwarded by ssh."""

from __future__ import annotations

import subprocess
import time
from urllib.parse import urlsplit

from k3ctl.engine import procs, rundir
from k3ctl.errors import EngineError
from k3ctl.host import ssh
from k3ctl.rack import agree
from k3ctl.rack.record import Group

CONNECT_S = 10.0


class Tunnel:
    """``url`` leads to ``there``, as long as the ssh lives; ``check`` starts it, and again when it has ended."""

    def __init__(self, host: str, there: str) -> None:
        parts = urlsplit(there)
        self._port = port = procs.free_port("127.0.0.1")
        self.host = host
        self.url = f"http://127.0.0.1:{port}"
        target = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        base = ssh.argv(host, [], CONNECT_S, watched=True)
        forward = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:{target}:{parts.port}"]
        self._argv = [base[0], *forward, *base[1 : base.index("--")], "--", host]
        self._process: subprocess.Popen[str] | None = None

    def open(self) -> None:
        """Make the way and wait until it is there. Raises EngineError."""
        why = self.check()
        deadline = time.monotonic() + CONNECT_S
        while not why and procs.port_is_free("127.0.0.1", self._port):
            time.sleep(0.05)
            late = time.monotonic() > deadline
            why = f"no connection within {CONNECT_S:.0f} s" if late else self.check()
        if why:
            self.close()
            raise EngineError(f"{self.host}: no way to its server: {why}", hint=ssh.hint(why, self.host))

    def check(self) -> str:
        """Why the way is not there; empty when it is, or is being made."""
        said = ""
        if self._process is not None and self._process.poll() is not None:
            assert self._process.stderr is not None
            said = ssh.last_line(self._process.stderr.read()) or "ssh ended"
            self._process.stderr.close()
        if self._process is None or said:
            # stdin stays open and empty; a session of its own, because Ctrl-C is this command's to answer
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=procs.die_with_parent,  # noqa: PLW1509 - it has no end of input to notice
            )
        return said

    def close(self) -> None:
        """End the ssh."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            assert self._process.stderr is not None
            self._process.stderr.close()


def needed(group: Group) -> bool:
    """Whether the group's server cannot be reached from here: it is on the loopback of another machine."""
    host = urlsplit(group.url).hostname or ""
    if not agree.is_loopback(host):
        return False
    here = {run.id for run in rundir.all_runs()}
    return group.members[0].run not in here
