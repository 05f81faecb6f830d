"""One validation of one server: the request, the run, what is told of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import output
from k3ctl.bundle.parts import Surroundings
from k3ctl.commands.bench import parts
from k3ctl.engine import rundir
from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import Block, CommandResult, Lines, Table
from k3ctl.server import which
from k3ctl.server.client import Client
from k3ctl.validate import bundle, facts, matrix, report, runner, state
from k3ctl.validate import tiers as known_tiers
from k3ctl.validate.record import Check
from k3ctl.validate.session import Session
from k3ctl.validate.state import Plan, State

SCHEMA = "k3ctl.validate/1"
MAX_ANSWER_BYTES = 256 << 20
"""Prompt log probabilities of a long context are long."""


@dataclass(frozen=True)
class Job:
    """What was asked."""

    tiers: tuple[str, ...]
    checks: tuple[Check, ...]
    options: Mapping[str, Any]
    out: Path | None = None
    resume: bool = False
    other: str | None = None
    axes: Mapping[str, Sequence[Any] | None] | None = None
    """Axes as they were given; None without a matrix."""

    def run(
        self, url: str | None, run: str | None, model: str | None, environ: Mapping[str, str]
    ) -> CommandResult:
        """Run every check against the server that is meant.

        Raises:
            UsageError: the output directory does not fit.
            EngineError: the server is gone, or went.
        """
        server = which.ready(which.one(url, run))
        client = Client(server.url, api_key=which.api_key(environ), max_bytes=MAX_ANSWER_BYTES)
        quiet = rundir.quiet(server.run.dir) if server.run is not None else contextlib.nullcontext()
        try:
            with quiet:
                known = facts.gather(client, server.run, model)
                axes = {} if self.axes is None else matrix.axes(known, self.axes)
                checks = (*self.checks, *(matrix.checks(axes) if axes else ()))
                before = self._hardware(server)
                kept = self._state(known, axes, checks)
                output.note(
                    f"validate {', '.join(self.tiers)} on {known.model} at {server.url} ({known.told})"
                )
                seconds = known_tiers.seconds(checks)
                output.note(
                    f"{len(checks)} checks, about {seconds:.0f} s on the CPU demo, in {kept.directory}"
                )
                with self._second(environ) as second, _kept_told(kept.directory):
                    session = Session(client, known, self.options, second)
                    runner.run(session, checks, kept, output.note, known.key)
        finally:
            client.close()
        around = Surroundings(server.run, before, self._hardware(server))
        return told(kept.directory, bundle.write(kept.directory, {known.key: around}))

    @staticmethod
    def _hardware(server: which.Server) -> Mapping[str, Any] | None:
        """This machine, where it is the server's."""
        return None if server.run is None else parts.hardware()

    @contextlib.contextmanager
    def _second(self, environ: Mapping[str, str]) -> Iterator[Session | None]:
        """The second server's session. Raises UsageError or EngineError when it is none."""
        if self.other is None:
            yield None
            return
        named = any(sign in self.other for sign in ":/.")
        server = which.ready(which.one(self.other, None) if named else which.one(None, self.other))
        client = Client(server.url, api_key=which.api_key(environ), max_bytes=MAX_ANSWER_BYTES)
        try:
            known = facts.gather(client, server.run)
            output.note(f"other side: {known.model} at {server.url} ({known.told})")
            yield Session(client, known, self.options)
        finally:
            client.close()

    def _state(self, known: facts.Facts, axes: matrix.Axes, checks: Sequence[Check]) -> State:
        now = time.time()
        plan = Plan(
            self.tiers,
            tuple(check.name for check in checks),
            dict(self.options) | ({"other": self.other} if self.other else {}),
            axes,
            {known.key: known.json()},
            now,
        )
        if self.resume and self.out is not None:
            return state.resume(self.out, plan, more_servers=bool(axes))
        return state.begin(self.out or new_dir(self.tiers, now), plan)


@contextlib.contextmanager
def _kept_told(directory: Path) -> Iterator[None]:
    """Says where the finished checks are when the rest is not run."""
    try:
        yield
    except BaseException:
        output.note(f"what is finished is kept: go on with `--out {directory} --resume`")
        raise


def new_dir(tiers: Sequence[str], now: float) -> Path:
    """A fresh name under the state root: ``validations/20261130-101500-canary``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    base = rundir.state_root() / "validations"
    names = (f"{stamp}-{'-'.join(tiers)}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100))))
    return next(base / name for name in names if not (base / name).exists())


def options(given: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` pairs. Raises UsageError."""
    found: dict[str, str] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"`--option {pair}` is no KEY=VALUE")
        found[name] = value
    return found


def axes(wanted: bool, **given: str | None) -> dict[str, Sequence[Any] | None] | None:
    """The axes of a matrix as they were given; None where none is wanted. Raises UsageError."""
    if not wanted:
        if name := next((name for name, text in given.items() if text is not None), None):
            raise UsageError(f"--{name} is an axis of the matrix", hint="add --matrix")
        return None
    layouts = given["layouts"]
    return {
        "batch": _numbers("batches", given["batches"]),
        "context": _numbers("contexts", given["contexts"]),
        "drafts": _numbers("drafts", given["drafts"]),
        "parallel": None if layouts is None else [part.strip().upper() for part in layouts.split(",")],
    }


def _numbers(name: str, text: str | None) -> list[int] | None:
    try:
        return None if text is None else list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(
            f"`--{name} {text}` is not a list of numbers", hint=f"for example --{name} 1,8"
        ) from None


def listing(checks: Sequence[Check]) -> CommandResult:
    """The checks as a table."""
    rows = [[check.name, check.shows, f"{check.seconds:.0f}"] for check in checks]
    data = [{"name": c.name, "tier": c.tier, "shows": c.shows, "estimate_s": c.seconds} for c in checks]
    table = Table(("check", "a pass shows", "s, CPU demo"), rows, right=frozenset({"s, CPU demo"}))
    return CommandResult("k3ctl.validate-list/1", {"checks": data}, [table])


def told(directory: Path, manifest: Mapping[str, Any]) -> CommandResult:
    """The results for people and scripts, with the exit code."""
    summary = bundle.summarize(directory / "raw")
    blocks: list[Block] = [Table(report.COLUMNS, [report.row(result) for result in summary["results"]])]
    for grid in report.grids(summary):
        rows = [[str(length), *cells] for length, cells in grid.rows]
        blocks.append(
            Table(("context", *(f"batch {n}" for n in grid.batches)), rows, f"matrix, {grid.title}")
        )
    lines = [summary["statement"], *summary["holes"]]
    lines.append(f"bundle: {directory} (read {', '.join(bundle.REPORTS)})")
    return CommandResult(
        SCHEMA,
        {**summary, "bundle": str(directory), "validity": manifest["validity"]},
        [*blocks, Lines(lines)],
        ExitCode.OK if summary["good"] else ExitCode.FAILED,
    )
