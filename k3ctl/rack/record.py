"""``group.json``: which runs on which nodes are one deployment. It lies with the operator who started it.

``<state root>/groups/<id>/`` holds ``group.json``, ``secret`` (mode 0600, never in an argument or in the record) and,
after a failure, the ends of the nodes' logs below ``logs/``.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.engine import procs, rundir
from k3ctl.errors import MachineError, UsageError

SCHEMA = "k3ctl.group/1"
MAX_BYTES = 1 << 20
KEEP = 20
FINAL_STATES = rundir.FINAL_STATES


@dataclass(frozen=True)
class Member:
    """One node of a group."""

    host: str
    """As the operator named it: what ssh is given."""
    rank: int
    address: str = ""
    run: str = ""
    """Id of its run there; empty before it has one."""
    log: str = ""
    """Its engine's log, a path on that host."""


@dataclass(frozen=True)
class Group:
    """One deployment over several nodes."""

    id: str
    profile: str
    started_at: float
    members: tuple[Member, ...]
    remote_k3ctl: str = "k3ctl"
    node_timeout_s: float = 60.0
    master_addr: str = ""
    master_port: int = 0
    url: str = ""
    served_model_name: str = ""
    state: str = "starting"
    """As the lead saw it last."""
    detached: bool = False
    """The lead has let go of it: the nodes are asked for the state."""
    reason: str = ""
    ready_at: float | None = None
    ended_at: float | None = None
    lead_pid: int = 0
    lead_started: int = 0
    boot_id: str = ""
    schema: str = SCHEMA
    dir: Path = field(default=Path(), compare=False)

    @property
    def led(self) -> bool:
        """Whether the command that started it is still there."""
        return (
            bool(self.lead_pid)
            and self.boot_id == procs.boot_id()
            and procs.started_at(self.lead_pid) == self.lead_started
        )

    @property
    def over(self) -> bool:
        """Whether it is known to have ended."""
        return self.state in FINAL_STATES

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes' names, node 0 first."""
        return tuple(member.host for member in self.members)


def root() -> Path:
    """Where the groups' directories lie."""
    return rundir.state_root() / "groups"


def new_id(profile: str) -> str:
    """An id that sorts by time and cannot be a run's: ``20260930-141502-gb300-tp16-group-3f9a``."""
    stamp, _, rest = rundir.new_id(profile).rpartition("-")
    return f"{stamp}-group-{rest}"


def create(group: Group, secret: str) -> Group:
    """Make the directory of a new group; of those that stopped in order the newest ``KEEP`` stay.

    Raises:
        MachineError: it cannot be written.
    """
    for old in [one for one in every() if one.state == "stopped" and files.owned(one.dir)][KEEP:]:
        shutil.rmtree(old.dir, ignore_errors=True)
    path = root() / group.id
    group = dataclasses.replace(group, dir=path)
    try:
        files.private_directory(path.parent)
        path.mkdir(mode=files.DIRECTORY)
        files.replace(path / "secret", secret.encode() + b"\n", exclusive=True)
        _write(group)
    except OSError as error:
        raise MachineError(
            f"cannot write the group's directory `{path}`: {error.strerror or error}",
            hint="free some space or set K3CTL_STATE_DIR to a directory you can write",
        ) from error
    return group


def update(path: Path, **changes: Any) -> Group:
    """Change fields; a final state is never left again."""
    with _locked(path):
        group = read(path)
        if group.over:
            changes.pop("state", None)
        group = dataclasses.replace(group, **changes)
        _write(group)
    return group


def ended(group: Group, state: str, reason: str) -> Group:
    """Note the end."""
    return update(group.dir, state=state, reason=reason, ended_at=time.time())


def read(path: Path) -> Group:
    """The group in directory ``path``. Raises UsageError: none is there, or its record is damaged."""
    where = path / "group.json"
    raw = files.parse_json(files.text(where, MAX_BYTES, "group"), f"`{where}`")
    damaged = UsageError(
        f"`{where}` is not a {SCHEMA} file", hint="it belongs to another version, or is damaged"
    )
    if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
        raise damaged
    try:
        members = tuple(Member(**{**member, "rank": int(member["rank"])}) for member in raw.pop("members"))
        group = Group(**raw, members=members, dir=path)
    except (TypeError, KeyError, ValueError, OverflowError):
        raise damaged from None
    kinds = {f.name: str(f.type) for f in dataclasses.fields(Group) if f.name not in ("members", "dir")}
    texts = [getattr(member, name) for member in members for name in ("host", "address", "run", "log")]
    if not members or not all(isinstance(text, str) for text in texts):
        raise damaged
    if any(not _fits(getattr(group, name), kind) for name, kind in kinds.items()):
        raise damaged
    return group


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind.startswith("float"):
        return (number and abs(value) < 1e11) or (value is None and kind.endswith("| None"))
    return isinstance(value, int) and number if kind == "int" else isinstance(value, str)


def every() -> list[Group]:
    """Every readable group, newest first."""
    found = []
    try:
        paths = list(root().iterdir())
    except OSError:
        return []
    for path in paths:
        try:
            found.append(read(path))
        except UsageError:
            continue
    return sorted(found, key=lambda group: group.started_at, reverse=True)


def live() -> list[Group]:
    """Those that are not known to have ended."""
    return [group for group in every() if not group.over]


def find(name: str) -> Group | None:
    """The group with this id, beginning of it, last part of it, or URL; those that live win.

    Raises:
        UsageError: several match.
    """
    if not name:
        return None
    groups = every()
    matches = [g for g in groups if g.id == name or (g.url and g.url == name.rstrip("/").removesuffix("/v1"))]
    matches = matches or [g for g in groups if g.id.startswith(name)]
    matches = matches or [g for g in groups if g.id.rsplit("-", 1)[-1] == name]
    chosen = [g for g in matches if not g.over] or matches
    if len(chosen) > 1 and name.startswith("http"):
        return chosen[0]
    if len(chosen) > 1:
        raise UsageError(f"`{name}` names {len(chosen)} groups", reasons=[group.id for group in chosen[:5]])
    return chosen[0] if chosen else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with files.append(path / "group.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(group: Group) -> None:
    values = dataclasses.asdict(group)
    del values["dir"]
    temporary = group.dir / f".group.{os.getpid()}.json"
    files.replace(temporary, (json.dumps(values, indent=2) + "\n").encode())
    temporary.replace(group.dir / "group.json")
