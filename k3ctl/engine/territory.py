"""Everything a run holds on this machine, and the one function that takes it all away.

A run's processes are the session of its reaper: the kernel does not reuse a session's number while a member
lives, so they can be told from strangers even after the reaper itself was killed. Shared-memory segments are
found as files below /dev/shm that a member has open or mapped. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from k3ctl import files
from k3ctl.engine import procs

SHM = Path("/dev/shm")
SCRATCH_PREFIX = "k3-"
SCRATCH_NAME = re.compile(rf"{SCRATCH_PREFIX}[a-z0-9_]{{8}}")
"""What ``mkdtemp`` makes of the prefix."""
RECORD_BYTES = 1 << 20
_RESOURCE_TRACKER = "multiprocessing.resource_tracker"


class Territory:
    """Processes, segments and scratch directories of one run.

    ``session`` is the pid of the run's reaper, ``record`` a file that lists the segments seen so far, so that
    whoever clears up later knows them; ``reaps`` says that the caller adopts orphans and collects them here.
    """

    def __init__(
        self,
        session: int,
        record: Path,
        scratch: Iterable[str] = (),
        *,
        reaps: bool = False,
        shm: Path = SHM,
    ) -> None:
        self.session = session
        self._scratch = tuple(scratch)
        self._reaps = reaps
        self._record = record
        self._shm = shm
        self._known: set[str] = set()
        self._checked: dict[str, int] = {}
        self._stamp = -1

    def members(self, besides: Iterable[int] = ()) -> list[procs.Process]:
        """Living processes of the run, without ``besides``: session members and all their descendants."""
        everyone = list(procs.everyone())
        children: dict[int, list[procs.Process]] = {}
        for process in everyone:
            children.setdefault(process.ppid, []).append(process)
        found: dict[int, procs.Process] = {}
        queue = [p for p in everyone if p.session == self.session]
        while queue:
            process = queue.pop()
            if process.pid not in found:
                found[process.pid] = process
                queue += children.get(process.pid, [])
        skip = set(besides)
        return [p for p in found.values() if p.state not in "ZX" and p.pid not in skip]

    def observe(self, force: bool = False) -> None:
        """Note new shared-memory segments of the run.

        Costs one ``stat`` while the directory does not change: reading a process's maps takes a lock.
        """
        with contextlib.suppress(OSError):
            stamp = self._shm.stat().st_mtime_ns
            if force or stamp != self._stamp or self._pending():
                self._attribute()
                self._stamp = stamp

    def segments(self) -> set[str]:
        """Names below /dev/shm that belong to the run and still exist."""
        with contextlib.suppress(OSError):
            self._known |= set(files.read(self._record, RECORD_BYTES).decode(errors="replace").split("\n"))
        return {name for name in self._known if self._is_segment(name)}

    def _is_segment(self, name: str) -> bool:
        """Whether ``name`` is a plain file directly below /dev/shm that this user owns: the record is only a file."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            return False
        return files.owned(self._shm / name) and (self._shm / name).is_file()

    def clear(
        self,
        *,
        besides: Iterable[int] = (),
        grace_s: float = 3.0,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Stop every process of the run, then remove its segments and scratch directories."""
        skip = {os.getpid(), *besides}
        members = self._freeze(skip)
        for process in members:
            procs.send(process.pid, signal.SIGTERM)
            procs.send(process.pid, signal.SIGCONT)
        if members and not self._gone(skip, grace_s):
            self._kill(skip, log)
        self._remove_segments(log)
        for directory in self._scratch:
            remove_scratch(directory)

    def _freeze(self, skip: set[int]) -> list[procs.Process]:
        """Halt all members and note their segments: none is made between the look and the signal that follows."""
        members = self.members(skip)
        for process in members:
            procs.send(process.pid, signal.SIGSTOP)
        if members:
            self.observe(force=True)
        return members

    def _kill(self, skip: set[int], log: Callable[[str], None]) -> None:
        for process in self._freeze(skip):
            # Python's resource trackers unlink the segments of processes that died: they go last
            if _RESOURCE_TRACKER in procs.command_line(process.pid, limit=1000):
                procs.send(process.pid, signal.SIGCONT)
            else:
                log(f"killing {process.name} (pid {process.pid})")
                procs.send(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10.0
        while not self._gone(skip, 1.0) and time.monotonic() < deadline:
            for process in self.members(skip):
                procs.send(process.pid, signal.SIGKILL)

    def _gone(self, skip: set[int], within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.members(skip):
            if time.monotonic() >= deadline:
                return False
            if self._reaps:
                reap()
            time.sleep(0.05)
        return True

    def _remove_segments(self, log: Callable[[str], None]) -> None:
        for name in sorted(self.segments()):
            path = self._shm / name
            if not _in_use(str(path)):
                log(f"removing shared-memory segment {name}")
                with contextlib.suppress(OSError):
                    path.unlink()

    def _pending(self) -> bool:
        return any(0 < tries < 8 for tries in self._checked.values())

    def _attribute(self) -> None:
        """Look for owners of unknown names; a name without one is tried a few times more."""
        present = {entry.name for entry in os.scandir(self._shm)}
        self._checked = {name: tries for name, tries in self._checked.items() if name in present}
        unknown = {name for name in present - self._known if self._checked.get(name, 0) < 8}
        if not unknown:
            return
        owned = _held(self.members(), {str(self._shm / name): name for name in unknown})
        for name in unknown:
            self._checked[name] = self._checked.get(name, 0) + 1
        for name in sorted(owned):
            self._known.add(name)
            self._checked.pop(name, None)
            with contextlib.suppress(OSError), files.append(self._record) as file:
                file.write(os.fsencode(name) + b"\n")


def remove_scratch(directory: str) -> bool:
    """Remove a scratch directory of a run; False, and nothing done, when it is not one.

    The name comes from a file: whatever stands in it, only a directory as ``mkdtemp`` makes it goes, one with our
    prefix, of this user alone, directly in a temporary directory, not reached through a link.
    """
    path = Path(directory)
    if (
        not path.is_absolute()
        or str(path) != directory
        or ".." in path.parts
        or not SCRATCH_NAME.fullmatch(path.name)
    ):
        return False
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        found, parent = path.lstat(), path.parent.resolve(strict=True)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        temporary = {Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()}
        if (
            ours
            and not found.st_mode & 0o077
            and (parent in temporary or parent.stat().st_mode & stat.S_ISVTX)
        ):
            shutil.rmtree(parent / path.name, ignore_errors=True)
            return True
    return False


def reap() -> None:
    """Collect children that have ended, adopted ones too."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _held(members: Iterable[procs.Process], paths: dict[str, str]) -> set[str]:
    """Which of ``paths`` (path → name) a member has open or mapped."""
    found: set[str] = set()
    for process in members:
        found |= {paths[target] for target in procs.open_files(process.pid) if target in paths}
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines():
                if "/dev/shm/" in line or line.endswith(tuple(paths)):
                    found |= {name for path, name in paths.items() if line.endswith(path)}
    return found


def _in_use(path: str) -> bool:
    everyone = list(procs.everyone())
    return bool(_held([p for p in everyone if p.state not in "ZX"], {path: path}))
