"""One server under one or several workloads: each becomes a bundle and a result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl import output
from k3ctl.commands.bench import parts
from k3ctl.errors import ExitCode, K3Error, UsageError
from k3ctl.output import Block, CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.engine.rundir import Run
    from k3ctl.loadtest.driver import BenchResult
    from k3ctl.loadtest.target import Target
    from k3ctl.loadtest.workload import Workload


@dataclass(frozen=True)
class Job:
    """What stays the same over the workloads. ``other``: what the results stand beside (``parts.baseline``)."""

    record: Run | None
    target: Target
    tool: str = "guidellm"
    api_key: str | None = None
    other: Mapping[str, Any] | str | None = None
    tui: bool = False

    def all(self, loads: Sequence[Workload], out: Path | None) -> CommandResult:
        """Run the workloads one after the other; one that fails, or Ctrl-C, loses no earlier result."""
        if len(loads) == 1:
            return self.one(loads[0], out)
        results: list[CommandResult] = []
        failures: list[str] = []
        codes: list[ExitCode] = []
        for load in loads:
            try:
                results.append(self.one(load, out / Path(load.preset).stem if out else None))
                codes.append(results[-1].exit_code)
            except K3Error as error:
                failures.append(
                    f"{load.preset}: {error.message}" + (f" ({error.hint})" if error.hint else "")
                )
                codes.append(error.exit_code)
            if codes[-1] in (ExitCode.INTERRUPTED, ExitCode.ENGINE):
                break
        left = [load.preset for load in loads[len(codes) :]]
        if left:
            failures.append(f"not run: {', '.join(left)}")
        blocks: list[Block] = [block for result in results for block in result.blocks]
        data = {"benches": [dict(result.data) for result in results], "failed": failures}
        return CommandResult("k3ctl.benches/1", data, blocks, _worst(codes), warnings=failures)

    def one(self, load: Workload, out: Path | None) -> CommandResult:
        """Run one workload and seal its evidence in ``out``, by default a new directory of the state root."""
        from k3ctl.loadtest import driver

        directory = out or driver.new_dir(load.preset)
        if directory.exists():
            raise UsageError(
                f"`{directory}` exists already", hint="choose another --out, results are never overwritten"
            )
        before = parts.hardware()
        output.note(parts.announce(load, self.target))
        result = self._drive(load, directory)
        manifest = parts.seal(directory, self.record, before)
        return self._told(result, directory, manifest)

    def _drive(self, load: Workload, directory: Path) -> BenchResult:
        from k3ctl.loadtest import driver

        def start(stop: threading.Event, on_line: Callable[[str], None]) -> BenchResult:
            return driver.run(
                load,
                self.target,
                out=directory,
                on_line=on_line,
                tool=self.tool,
                api_key=self.api_key,
                stop=stop,
            )

        if not self.tui:
            return start(threading.Event(), output.note)
        from k3ctl.commands.bench.screen import watch

        return watch(start, self.target, self.record, directory, api_key=self.api_key)

    def _told(self, result: BenchResult, directory: Path, manifest: Mapping[str, Any]) -> CommandResult:
        from k3ctl.loadtest import view

        summary = result.summary
        lines = parts.comparison(summary, self.other)
        tables = [
            Table(names, cells, title, frozenset(names) - view.TEXT_COLUMNS)
            for title, names, cells in view.tables(summary)
        ]
        text = [*view.findings(summary), *lines, f"bundle: {directory}"]
        data = {**summary, "bundle": str(directory), "validity": manifest["validity"], "comparison": lines}
        return CommandResult("k3ctl.bench/1", data, [*tables, Lines(text)], result.exit_code)


def _worst(codes: Sequence[ExitCode]) -> ExitCode:
    """An interruption first, then a server that is gone, then whatever else failed."""
    for code in (ExitCode.INTERRUPTED, ExitCode.ENGINE, ExitCode.MACHINE, ExitCode.USAGE, ExitCode.FAILED):
        if code in codes:
            return code
    return ExitCode.OK
