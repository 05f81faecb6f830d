"""The run directory: what a served engine is, where it listens, in which state it is.

``<state root>/runs/<id>/`` holds ``run.json`` (below), ``engine.log``, ``supervisor.log``,
``witness/rank<R>.json`` and, for generated models, ``model/``. Secrets are never written there; directories have mode
0700 and files 0600.
Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from k3ctl import files
from k3ctl.engine import procs
from k3ctl.errors import MachineError, UsageError

SCHEMA = "k3ctl.run/1"
LIVE_STATES = ("starting", "ready", "stopping")
FINAL_STATES = ("stopped", "failed")
MAX_BYTES = 8 << 20
"""Longest ``run.json``; it holds the profile's texts."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Run:
    """One served engine, as ``run.json`` describes it."""

    id: str
    profile: str
    host: str
    port: int
    url: str
    served_model_name: str
    tokenizer: str
    argv: tuple[str, ...]
    """Command line of the engine, with secrets replaced by ``***``."""
    env: Mapping[str, str]
    """Environment variables that k3ctl set for the engine."""
    started_at: float
    """Unix seconds."""
    state: str = "starting"
    pid: int = 0
    """The reaper: the process to signal."""
    pid_started: int = 0
    """Start time of ``pid`` in clock ticks after boot: tells it from a later process with the same number."""
    boot_id: str = ""
    session: int = 0
    """Session that every process of the run belongs to: the reaper's pid, once it has taken over."""
    supervisor_pid: int = 0
    engine_pid: int = 0
    """vLLM's API server (on a headless node its launcher)."""
    scratch: tuple[str, ...] = ()
    """Directories for sockets and temporary files; they go with the run."""
    ready_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    """Exit status of the engine; negative for a signal."""
    reason: str = ""
    """Why the run ended, or what is wrong with it now."""
    findings: tuple[Mapping[str, Any], ...] = ()
    """What the watch saw: ``{"at", "kind", "text", "files"}``."""
    vllm: str = ""
    """Version of vLLM in the engine's Python."""
    node_rank: int = 0
    nnodes: int = 1
    launch: Mapping[str, Any] = field(default_factory=dict)
    """What it was started with (``engine.record``)."""
    schema: str = SCHEMA
    dir: Path = field(default=Path(), compare=False)

    @property
    def engine_log(self) -> Path:
        """Everything the engine printed."""
        return self.dir / "engine.log"

    @property
    def witness_dir(self) -> Path:
        """Pages that the runtime's workers write."""
        return self.dir / "witness"

    def alive(self) -> bool:
        """Whether the run's reaper still exists."""
        return (
            bool(self.pid)
            and self.boot_id == procs.boot_id()
            and procs.started_at(self.pid) == self.pid_started
        )

    def live(self) -> bool:
        """Whether the run serves or is on its way there."""
        return self.state in LIVE_STATES and self.alive()

    def status(self) -> str:
        """State for people: a run whose processes vanished without a last word is ``lost``."""
        return self.state if self.state in FINAL_STATES or self.alive() else "lost"


def state_root() -> Path:
    """``$K3CTL_STATE_DIR``, else ``$XDG_STATE_HOME/k3ctl``, else ``~/.local/state/k3ctl``."""
    if own := os.environ.get("K3CTL_STATE_DIR"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state").absolute() / "k3ctl"


def runs_root() -> Path:
    """Where the run directories lie."""
    return state_root() / "runs"


def create(run: Run) -> Run:
    """Make the directory of a new run and write its first ``run.json``.

    Raises:
        MachineError: the state directory cannot be written.
    """
    path = runs_root() / run.id
    run = dataclasses.replace(run, dir=path)
    try:
        files.private_directory(path.parent)
        path.mkdir(mode=files.DIRECTORY)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        (path / "witness").mkdir(mode=files.DIRECTORY)
        _write(run)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise _unwritable(path, error) from error
    return run


def _unwritable(path: Path, error: OSError) -> MachineError:
    return MachineError(
        f"cannot write the run directory `{path}`: {error.strerror or error}",
        hint="free some space or set K3CTL_STATE_DIR to a directory you can write",
    )


def new_id(profile: str, now: float | None = None) -> str:
    """A run id that sorts by time: ``20260930-141502-cpu-tiny-3f9a``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now if now is not None else time.time()))
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(profile).stem)[:40]
    return f"{stamp}-{name}-{secrets.token_hex(2)}"


def update(path: Path, **changes: Any) -> Run:
    """Change fields of ``run.json``; a final state is never left again.

    The file is replaced atomically under a lock, so that readers see a whole file and writers lose nothing.
    """
    with _locked(path):
        run = read(path)
        if run.state in FINAL_STATES:
            changes.pop("state", None)
        run = dataclasses.replace(run, **changes)
        _write(run)
    return run


def add_finding(path: Path, kind: str, text: str, files: tuple[str, ...] = ()) -> None:
    """Append one finding of the watch."""
    with _locked(path):
        run = read(path)
        finding = {"at": time.time(), "kind": kind, "text": text, "files": list(files)}
        _write(dataclasses.replace(run, findings=(*run.findings, finding)))


def read(path: Path) -> Run:
    """The run in directory ``path``.

    Raises:
        UsageError: there is none, or ``run.json`` is damaged or of another version.
    """
    where = path / "run.json"
    try:
        data = files.read(where, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no run in `{path}`", hint="see `k3ctl ps --all`") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"`{where}` cannot be read: {files.reason(error)}") from error
    raw = files.parse_json(data, f"`{where}`")
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise UsageError(f"`{where}` is not a {SCHEMA} file", hint="it belongs to another k3ctl version")
    known = {f.name: f for f in dataclasses.fields(Run) if f.name != "dir"}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in raw.items()
        if name in known
    }
    missing = [name for name, f in known.items() if name not in values and _required(f)]
    wrong = [name for name, value in values.items() if not _fits(value, str(known[name].type))]
    if missing or wrong:
        what = f"has no `{missing[0]}`" if missing else f"has a `{wrong[0]}` that cannot be one"
        raise UsageError(f"`{where}` {what}", hint="move its directory away; `k3ctl ps` shows the other runs")
    return Run(**values, dir=path)


def _required(field_: dataclasses.Field[Any]) -> bool:
    return field_.default is dataclasses.MISSING and field_.default_factory is dataclasses.MISSING


def _fits(value: Any, kind: str) -> bool:
    """Whether a value of ``run.json`` is what the field's annotation says."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind.startswith("tuple["):
        fits = _is_text if kind.startswith("tuple[str") else _is_finding
        return isinstance(value, tuple) and all(map(fits, value))
    if kind == "Mapping[str, str]":
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    if kind.startswith("Mapping["):
        return isinstance(value, dict)
    if value is None:
        return kind.endswith("| None")
    if kind.startswith("int"):
        return isinstance(value, int) and number and abs(value) < 1 << 62
    if kind.startswith("float"):
        # seconds that `time.localtime` can show
        return number and abs(value) < 1e11
    return isinstance(value, str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_finding(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _fits(value.get("at"), "float")
        and all(_is_text(value.get(name)) for name in ("kind", "text"))
        and isinstance(value.get("files"), list)
        and all(map(_is_text, value["files"]))
    )


def all_runs() -> list[Run]:
    """Every readable run, newest first; damaged directories are left out (``damaged`` names them)."""
    return sorted(_found()[0], key=lambda run: run.started_at, reverse=True)


def damaged() -> list[str]:
    """What is wrong with the records that ``all_runs`` leaves out, one sentence each."""
    return _found()[1]


def _found() -> tuple[list[Run], list[str]]:
    runs, problems = [], []
    try:
        paths = sorted(runs_root().iterdir(), reverse=True)
    except OSError:
        return [], []
    for path in paths:
        try:
            runs.append(read(path))
        except UsageError as error:
            if path.is_dir():
                problems.append(error.message)
    return runs, problems


def require_mine(run: Run) -> None:
    """Refuse to act on what a record says unless this user wrote it.

    Raises:
        UsageError: the directory or its ``run.json`` belongs to another user, or is a link.
    """
    for path in (run.dir, run.dir / "run.json"):
        if not files.owned(path):
            raise UsageError(
                f"`{path}` belongs to another user or is a link, so nothing that it names is touched",
                hint="run this as the user who started the run",
            )


def sessions() -> dict[int, str]:
    """Sessions of this user's live runs and their ids: every process of a run is in its reaper's."""
    return {run.session: run.id for run in all_runs() if run.session and run.live()}


def latest_live() -> Run | None:
    """The youngest run that is ready, else the youngest that is starting, else None."""
    live = [run for run in all_runs() if run.live() and run.node_rank == 0]
    ready = [run for run in live if run.state == "ready"]
    return next(iter(ready or live), None)


def find(id_or_url: str) -> Run:
    """The run with this id, unambiguous id prefix, directory or URL; live ones win.

    Raises:
        UsageError: none or several match.
    """
    if id_or_url.startswith(("http://", "https://")):
        return _by_url(id_or_url)
    if os.sep in id_or_url or (Path(id_or_url) / "run.json").is_file():
        return read(Path(id_or_url).expanduser().absolute())
    runs = all_runs()
    matches = [run for run in runs if run.id == id_or_url] or [
        run for run in runs if run.id.startswith(id_or_url)
    ]
    if not matches:
        matches = [run for run in runs if id_or_url == run.id.rsplit("-", 1)[-1]]
    live = [run for run in matches if run.live()]
    chosen = live if len(live) == 1 else matches
    if not id_or_url or not chosen:
        raise UsageError(f"no run `{id_or_url}`", hint="see `k3ctl ps --all`")
    if len(chosen) > 1:
        raise UsageError(f"`{id_or_url}` names {len(chosen)} runs", reasons=[run.id for run in chosen[:5]])
    return chosen[0]


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a URL, with names of this machine folded to ``127.0.0.1``.

    Raises:
        UsageError: it has no host, or a port that is none.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UsageError(f"`{url}` is not a server address: {error}") from None
    if not host:
        raise UsageError(f"`{url}` is not a server address")
    return ("127.0.0.1" if host in LOOPBACK or host in WILDCARDS else host), port


@contextlib.contextmanager
def quiet(path: Path) -> Iterator[None]:
    """Keep the supervisor's canary requests away while a command measures or counts steps."""
    with files.append(path / "traffic.lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _by_url(url: str) -> Run:
    wanted = address_of(url)
    # only node 0 of a launch over several nodes has the server
    matches = [run for run in all_runs() if run.node_rank == 0 and _serves(run, wanted)]
    found = next((run for run in matches if run.live()), None) or next(iter(matches), None)
    if found is None:
        raise UsageError(f"no run of this user serves `{url}`", hint="see `k3ctl ps --all`")
    return found


def _serves(run: Run, wanted: tuple[str, int]) -> bool:
    with contextlib.suppress(UsageError):
        return address_of(run.url) == wanted
    return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with files.append(path / "run.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(run: Run) -> None:
    values = {f.name: getattr(run, f.name) for f in dataclasses.fields(run) if f.name != "dir"}
    data = (json.dumps({"schema": run.schema, **values}, indent=2, default=list) + "\n").encode()
    target = run.dir / "run.json"
    # a private temporary name: a writer that dies half-way leaves the old file whole
    temporary = run.dir / f".run.{os.getpid()}.json"
    try:
        files.replace(temporary, data)
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        if not target.exists():
            raise
        _overwrite(target, data)


def _overwrite(target: Path, data: bytes) -> None:
    """On a full disk the file's own blocks can still be written; where they do not suffice the file stays whole."""
    with os.fdopen(os.open(target, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            os.posix_fallocate(file.fileno(), 0, len(data))
        except OSError:
            file.truncate(size)
            raise
        file.write(data)
        file.truncate()
