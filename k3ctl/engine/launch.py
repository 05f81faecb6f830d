"""Starts an engine from a resolved configuration and stays its owner until it is stopped or let go."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from k3ctl import files, redact
from k3ctl.engine import command, logs, preflight, procs, prune, record, rundir
from k3ctl.engine.client import Client
from k3ctl.engine.node import Node
from k3ctl.engine.reaper import BOOT
from k3ctl.engine.rundir import Run
from k3ctl.engine.stages import Stage, StageTracker
from k3ctl.engine.supervisor import REAPER_KILLED
from k3ctl.engine.territory import Territory, remove_scratch
from k3ctl.errors import EngineError, UsageError

if TYPE_CHECKING:
    from k3ctl.profiles.resolve import ResolvedConfig

POLL_S = 0.1
STOP_S = 40.0
"""After this long an orderly stop has failed and the supervisor is killed; the reaper then clears up."""


class RunningEngine:
    """An engine that this process owns. As a context manager it is stopped at the end.

    When this process ends in any other way the engine is stopped too, unless ``detach`` let it go.
    """

    def __init__(
        self, run: Run, process: subprocess.Popen[bytes], lifeline: int, api_key: str | None
    ) -> None:
        self.run_dir = run.dir
        self.url = run.url
        self.id = run.id
        self._process = process
        self._lifeline = lifeline
        self.api_key = api_key
        self._last = run

    @property
    def run(self) -> Run:
        """The run as it is now; as it was last seen when its directory has been removed."""
        with contextlib.suppress(UsageError):
            self._last = rundir.read(self.run_dir)
        return self._last

    def client(self, timeout_s: float = 5.0) -> Client:
        """HTTP to this engine."""
        return Client(self.url, api_key=self.api_key, timeout_s=timeout_s)

    def wait_ready(self, on_stage: Callable[[Stage], None] = lambda _: None) -> Run:
        """Block until the server answers a canary request.

        Raises:
            EngineError: the engine ended before; the message says why, as far as the log tells.
        """
        tracker, log = StageTracker(), logs.LogFollower(self.run_dir / "engine.log")
        while True:
            for line in log.lines():
                if stage := tracker.feed(line, time.monotonic()):
                    on_stage(stage)
            run = self.run
            if run.state == "ready":
                on_stage(Stage("ready"))
                return run
            if run.state != "starting" or self._process.poll() is not None:
                self.wait()
                raise failure(self.run)
            time.sleep(POLL_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until engine and reaper are gone; False when the time is over."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        run = self.run
        if run.state not in rundir.FINAL_STATES and run.dir.is_dir():
            stop(run)
        self._release()
        return True

    def stop(self) -> Run:
        """Stop gracefully, then firmly. Returns when no process is left. Safe to repeat."""
        if self.run.state != "stopping":
            self.stop_now()
        if not self.wait(STOP_S):
            _kill_supervisor(self.run)
        self.wait()
        return self.run

    def stop_now(self) -> None:
        """Send a stop request without waiting; a second one makes the stop a firm one."""
        if self._process.poll() is None:
            self._process.terminate()

    def detach(self) -> None:
        """Let the engine outlive this process."""
        if self._lifeline >= 0:
            os.write(self._lifeline, b".")
        self._release()

    def _release(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    resolved: ResolvedConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    node: Node | None = None,
    timing: Mapping[str, float] | None = None,
    on_stage: Callable[[Stage], None] = lambda _: None,
) -> RunningEngine:
    """Start the engine and wait until it is ready.

    ``host`` and ``port`` win over the configuration; port 0 takes a free one.

    Raises:
        UsageError, MachineError: refused before anything was started.
        EngineError: the engine ended while starting; nothing of it is left.
    """
    engine = launch(resolved, host=host, port=port, node=node, timing=timing)
    try:
        engine.wait_ready(on_stage)
    except BaseException:
        engine.stop()
        raise
    return engine


def launch(
    resolved: ResolvedConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    node: Node | None = None,
    timing: Mapping[str, float] | None = None,
    any_version: bool = False,
    seen: Mapping[str, Any] | None = None,
) -> RunningEngine:
    """Start the engine and return at once; ``wait_ready`` and ``stop`` are the caller's.

    ``timing`` overrides the supervisor's ``grace_s``, ``canary_timeout_s``, ``stall_s`` and ``idle_s``; ``seen`` is
    what the record keeps about the machine (``gpus`` that the engine can see, ``driver``); ``any_version``
    accepts a vLLM that the profile is not made for, and tells the runtime to try.
    """
    python = preflight.interpreter()
    if not any_version:
        preflight.version(python, resolved.profile)
    preflight.nodes(resolved, node)
    typed = {key: f"--{key}" for key, value in {"host": host, "port": port}.items() if value is not None}
    host = host if host is not None else str(resolved.get("host", "127.0.0.1"))
    port = port if port is not None else int(resolved.get("port", 8000))
    if not resolved.needs_generated_model:
        preflight.model_directory(resolved.model)
    with _one_at_a_time():
        for lost in (run for run in rundir.all_runs() if run.status() == "lost"):
            stop(lost)
        for run in prune.stale(rundir.all_runs()):
            # a directory that resists is no reason not to serve
            with contextlib.suppress(UsageError):
                prune.remove(run)
        if node is None or node.rank == 0:
            port = preflight.free_port(host, port)
        run = rundir.create(_new_run(resolved, host, port, node, python.vllm))
    scratch = command.scratch_directories()
    try:
        if resolved.needs_generated_model:
            resolved = resolved.with_model_path(_generate(python.path, resolved, run.dir))
        built = command.build(resolved, python, run, scratch, os.environ, node)
        forced = {"K3_ANY_VLLM": "1"} if any_version else {}
        built = dataclasses.replace(built, env={**command.time_limits(resolved), **forced, **built.env})
        kept = record.made(resolved, built.args, built.env, python=python, typed=typed, **(seen or {}))
        run = rundir.update(
            run.dir,
            argv=redact.PLAIN.argv(built.argv),
            env=kept["env"],
            launch=kept,
            scratch=tuple(dict.fromkeys(scratch)),
            tokenizer=str(resolved.get("tokenizer") or resolved.model),
        )
        orders = {
            "argv": list(built.argv),
            "env": {**os.environ, **built.env},
            "api_key": built.api_key,
            "group": command.group(resolved, node),
            "umask": _umask(),
            **(timing or {}),
        }
        return _spawn(run, orders)
    except BaseException as error:
        for directory in scratch:
            shutil.rmtree(directory, ignore_errors=True)
        rundir.update(run.dir, state="failed", reason=str(error), ended_at=time.time())
        raise


def stop(run: Run) -> Run:
    """Stop a run from any process of its user; returns when nothing of it is left.

    A supervisor that does not obey is killed: its reaper clears up. Without a reaper this function does.

    Raises:
        UsageError: the run belongs to another user, or its record is reached through a link.
    """
    rundir.require_mine(run)
    if run.alive():
        procs.send(run.pid, signal.SIGTERM)
        if not _ended(run, STOP_S):
            _kill_supervisor(run)
            _ended(run, STOP_S)
    if not run.alive():
        _clear_lost(run)
    return rundir.read(run.dir)


def _kill_supervisor(run: Run) -> None:
    """Only a process of the run's own session: a number in a file may stand for somebody else by now."""
    found = procs.stat(run.supervisor_pid) if run.supervisor_pid > 1 else None
    if found is not None and run.session and found.session == run.session:
        procs.send(found.pid, signal.SIGKILL)


def failure(run: Run) -> EngineError:
    """The error for a run that ended when it should not have, with the first cause that its log shows."""
    from k3ctl.triage import scan

    message = f"{run.reason or 'the engine ended'} (run `{run.id}`)"
    log = f"log: {run.engine_log}"
    try:
        first = scan.scan(logs.parts(run.engine_log), one_log=True).first_cause
    except OSError:
        first = None
    if first is None:
        return EngineError(message, reasons=[log])
    return EngineError(
        message, hint=first.action, reasons=[f"{first.title} [{first.rule.id}]", first.cause, log]
    )


def _ended(run: Run, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while run.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _clear_lost(run: Run) -> None:
    """Take away what a run left whose reaper was killed: its session is still its own."""
    same_boot = bool(run.boot_id) and run.boot_id == procs.boot_id()
    if run.session > 1 and same_boot and procs.started_at(run.session) is None:
        Territory(run.session, run.dir / "segments", run.scratch).clear()
    elif not run.session:
        # its reaper died before it took over, so nothing was started: only the scratch directories exist
        for directory in run.scratch:
            remove_scratch(directory)
    if rundir.read(run.dir).state not in rundir.FINAL_STATES:
        rundir.update(run.dir, state="failed", reason=REAPER_KILLED, ended_at=time.time())


def _new_run(resolved: ResolvedConfig, host: str, port: int, node: Node | None, vllm: str) -> Run:
    names = resolved.get("served_model_name") or [resolved.model]
    reach = "127.0.0.1" if host in rundir.WILDCARDS else host
    if node is not None and node.rank:
        reach = node.master_addr
    return Run(
        id=rundir.new_id(resolved.profile.name),
        profile=resolved.profile.name,
        host=host,
        port=port,
        url=f"http://[{reach}]:{port}" if ":" in reach else f"http://{reach}:{port}",
        served_model_name=names[0] if isinstance(names, list) else str(names),
        tokenizer="",
        argv=(),
        env={},
        started_at=time.time(),
        # until the reaper takes over, the run belongs to this process
        pid=os.getpid(),
        pid_started=procs.started_at(os.getpid()) or 0,
        boot_id=procs.boot_id(),
        vllm=vllm,
        node_rank=node.rank if node else 0,
        nnodes=int(resolved.get("nnodes") or 1),
    )


def _generate(python: str, resolved: ResolvedConfig, run_dir: Path) -> str:
    """Make the model's configuration and tokenizer in a child process: k3ctl never imports the runtime."""
    out = run_dir / "model"
    kind = resolved.profile.model.generated
    words = [python, "-m", f"runtime.{kind}", "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, umask=0o077)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise EngineError(f"the {kind} model could not be made: {lines[-1]}", hint=f"run `{' '.join(words)}`")
    return str(out)


def _spawn(run: Run, orders: Mapping[str, Any]) -> RunningEngine:
    """Start the reaper and hand it its orders over a pipe."""
    reading, lifeline = os.pipe()
    root = str(Path(__file__).resolve().parents[2])
    with files.append(run.dir / "supervisor.log") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT, root, str(run.dir), str(reading)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            pass_fds=(reading,),
        )
    os.close(reading)
    rundir.update(run.dir, pid=process.pid, pid_started=procs.started_at(process.pid) or 0)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(orders).encode())
    return RunningEngine(run, process, lifeline, orders["api_key"])


def _umask() -> int:
    """This process's file mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two starts at the same moment must not both find the port free."""
    root = rundir.state_root()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=files.DIRECTORY)
        file = files.append(root / "start.lock")
    except OSError as error:
        raise UsageError(
            f"cannot write the state directory `{root}`: {error.strerror or error}",
            hint="set K3CTL_STATE_DIR to a directory you can write",
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
