"""The main job end to end on this machine: serve the tiny K3, verify its path, bench it, stop it, report.

Composes the same core functions as ``serve``, ``verify`` and ``bench``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.engine import launch
from k3ctl.engine.stages import Stage
from k3ctl.loadtest import belief, driver, target, workload
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve
from k3ctl.verdict import check
from k3ctl.verdict.judge import Grade, Verdict

PROFILE = "cpu-tiny"
PRESET = "smoke"
COLUMNS = (
    "concurrency",
    "TTFT ms",
    "ITL ms",
    "output tok/s",
    "requests",
    "errors",
    "specialized steps",
    "path",
)


@dataclass(frozen=True)
class DemoResult:
    """What the run showed. ``bench``: the summary of the load; ``run_dir``: the engine's log and run record."""

    verdict: Verdict
    bench: Mapping[str, Any]
    run_dir: str
    bench_dir: str

    @property
    def ok(self) -> bool:
        """Path proved, every bench row valid."""
        return self.verdict.grade is Grade.PROVED and bool(self.bench["valid"])


def run(
    tell: Callable[[str], None], on_stage: Callable[[Stage], None], environ: Mapping[str, str]
) -> DemoResult:
    """Run it all; nothing of the engine is left afterwards, however this ends.

    Raises:
        MachineError: something is not installed.
        EngineError: the engine did not start, or went away.
    """
    resolved = resolve(loader.load(PROFILE), {}, environ)
    tell(f"serve {PROFILE}")
    with launch.start(resolved, port=0, on_stage=on_stage) as engine:
        record = engine.run
        tell(f"serving `{record.served_model_name}` at {record.url}/v1")
        tell("verify")
        verdict = check.check(check.target(None, record.id))
        tell(f"path: {verdict.grade} — {verdict.statement}")
        tell(f"bench {PRESET}")
        load, to = workload.load(PRESET), target.from_run(record)
        bench = driver.run(load, to, out=driver.new_dir(PRESET), on_line=tell)
        tell("stop")
    return DemoResult(verdict, bench.summary, str(record.dir), str(bench.dir))


def table_rows(result: DemoResult) -> list[list[str]]:
    """One line per concurrency, formatted."""
    return [_row(row, result.verdict.grade) for row in result.bench["rows"]]


def steps_counted(verdict: Verdict) -> Mapping[str, float]:
    """Decode steps of the verify drives: all, and specialized."""
    drives = verdict.drives
    return {
        "decode_steps": sum(drive.decodes for drive in drives),
        "specialized": sum(drive.specialized for drive in drives),
    }


def _row(row: Mapping[str, Any], grade: Grade) -> list[str]:
    path = (row.get("server") or {}).get("path") or {}
    counted = f"{path.get('specialized', 0):.0f}/{path.get('decode_and_mixed', 0):.0f}"
    doubts = belief.refusing(row, belief.STEPS)
    return [
        str(row["concurrency"]),
        # means, because the guards judge those
        belief.shown(row, belief.TTFT, (row.get("ttft_ms") or {}).get("mean")),
        belief.shown(row, belief.ITL, (row.get("itl_ms") or {}).get("mean")),
        belief.shown(row, belief.OUTPUT, row.get("output_tok_s")),
        str(row["requests"]["completed"]),
        str(row["requests"]["errored"]),
        f"– ({', '.join(doubts)})" if doubts else counted if path else "–",
        grade.value,
    ]
