"""Processes of this machine, read from /proc: who lives, who belongs together, who listens on a port.

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k3ctl.redact import PLAIN

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_TCP_LISTEN = "0A"


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat. ``started`` is in clock ticks after boot."""

    pid: int
    name: str
    state: str
    ppid: int
    session: int
    started: int


def stat(pid: int) -> Process | None:
    """What the kernel says about ``pid``, or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # the name is in parentheses and may itself hold spaces and parentheses
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Process(pid, head.partition("(")[2], fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def everyone() -> Iterator[Process]:
    """Every process that can be seen."""
    for pid in _pids():
        if (found := stat(pid)) is not None:
            yield found


def started_at(pid: int) -> int | None:
    """Start time in clock ticks after boot; None for a process that is gone or only waits to be reaped."""
    found = stat(pid)
    return None if found is None or found.state in "ZX" else found.started


def boot_id() -> str:
    """Identifies this boot of the machine: start times compare only within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def command_line(pid: int, limit: int = 160) -> str:
    """The command of ``pid`` for people, without secrets, or an empty string."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    text = " ".join(PLAIN.argv(raw.decode(errors="replace").split("\0"))).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def send(pid: int, signum: int) -> bool:
    """Signal a process; False when it is gone or not ours."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that they can be found and waited for."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal when the parent process ends (prctl(2), PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def set_name(name: str) -> None:
    """Name of this process in ``ps`` and ``top`` (15 bytes)."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, value: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")


def port_is_free(host: str, port: int) -> bool:
    """Whether a server can listen on ``host:port`` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str) -> int:
    """A port that is free on ``host`` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listener(port: int) -> int | None:
    """The pid that listens on TCP ``port``; None when nobody does or it belongs to another user."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return next((pid for pid in _pids() if not wanted.isdisjoint(open_files(pid))), None)


def open_files(pid: int) -> Iterator[str]:
    """Targets of the file descriptors of ``pid``, as far as they may be read."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        with contextlib.suppress(OSError):
            yield str(link.readlink())


def _pids() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _TCP_LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
