"""Timing kernels: graph replay over rotating buffers, contenders interleaved, results as JSON lines.

A contender is a list of calls, one per buffer set. All calls are captured into one CUDA graph, so launch cost on
the host is not measured, and consecutive calls touch different memory, so nothing but what a real step would find
there sits in the L2 cache. Programmatic dependent launch stays active inside the graph, for every contender that
uses it. Replays of all contenders alternate, so that clock and temperature drift hit them alike. Every round starts
behind a kernel that only waits, so that the host has submitted all replays before the first one runs: a graph launched
on an idle GPU costs several microseconds more, which the first contender of each round would pay.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path

import torch

SCHEMA = "k3.kernel_bench/1"
L2_BYTES = 60e6  # H200; buffer sets together exceed it twice
H200_BYTES_PER_S = 4.3e12  # large device-to-device copy, read + write, measured
HOST_AHEAD_CYCLES = 1_000_000  # 0.5 ms: longer than the host needs to submit a round
TOLERANT = (
    "-o",
    "addopts=--strict-markers",
)  # a GPU host may lack a pytest plugin that only other tests need
Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Per-call time of one contender over all replays, in µs."""

    median_us: float
    low_us: float
    high_us: float
    replays: int


@dataclass(frozen=True)
class Result:
    """One contender on one case: what is appended to `docs/log/*.jsonl`."""

    op: str
    case: dict
    contender: str
    timing: Timing
    moved_bytes: int
    note: str = ""
    machine: dict = field(default_factory=dict)

    def line(self) -> str:
        """The JSON line, with bandwidth and the share of the byte floor."""
        floor_us = self.moved_bytes / H200_BYTES_PER_S * 1e6
        data = {"schema": SCHEMA, **asdict(self)}
        data["gb_s"] = round(self.moved_bytes / self.timing.median_us / 1e3, 1)
        data["floor_us"] = round(floor_us, 3)
        data["of_floor"] = round(floor_us / self.timing.median_us, 4)
        return json.dumps(data)


def buffer_sets(bytes_per_set: int, most: int = 512) -> int:
    """How many buffer sets keep the L2 cache cold: at least 8, together at least twice its size if possible."""
    return max(8, min(most, int(2 * L2_BYTES // max(bytes_per_set, 1)) + 1))


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """Run every call once, then capture all of them in order into one graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    return graph


def measure(
    contenders: dict[str, Sequence[Call]], *, min_calls: int = 64, rounds: int = 15
) -> dict[str, Timing]:
    """Per-call times of all contenders, measured in `rounds` alternating replays after two unmeasured ones."""
    graphs, counts, samples = {}, {}, {name: [] for name in contenders}
    for name, calls in contenders.items():
        repeated = list(calls) * -(-min_calls // len(calls))
        graphs[name], counts[name] = capture(repeated), len(repeated)
    for number in range(rounds + 2):
        pending = []
        torch.cuda._sleep(HOST_AHEAD_CYCLES)
        for name, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            pending.append((name, begin, end))
        torch.cuda.synchronize()
        if number >= 2:
            for name, begin, end in pending:
                samples[name].append(begin.elapsed_time(end) * 1e3 / counts[name])
    return {
        name: Timing(statistics.median(times), min(times), max(times), len(times))
        for name, times in samples.items()
    }


def machine() -> dict:
    """GPU, driver, versions and commit of this measurement."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    versions = {}
    for package in ("torch", "triton", "nvidia-cutlass-dsl", "vllm"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    commit = (
        os.environ.get("K3_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    return {"gpu": torch.cuda.get_device_name(), "driver": driver, "commit": commit, "versions": versions}


def append(path: Path, results: Sequence[Result]) -> None:
    """Append results to a JSON-lines log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as log:
        for result in results:
            log.write(result.line() + "\n")


@dataclass(frozen=True)
class Case:
    """One row of a benchmark: calls per contender over the same number of buffer sets.

    moved_bytes: that must move through device memory once per call. ours: the contender whose speedup is reported.
    """

    values: dict
    moved_bytes: int
    contenders: dict[str, Sequence[Call]]
    ours: str = "k3"
    min_calls: int = 64


def peer(module: str, name: str) -> object | None:
    """An implementation from another package, or None if it is not installed."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, OSError):
        return None


def require_green(op: str) -> None:
    """Run the operator's tests, GPU tests included; exit unless all pass: a wrong kernel has no speed."""
    kernels = Path(__file__).parents[2]
    tests = kernels / op if (kernels / op).is_dir() else kernels / f"test_{op}_gpu.py"
    environment = os.environ | {"K3_REQUIRE_GPU": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *TOLERANT, "-q", "-x", str(tests)], check=False, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{op}: its tests fail, so there is nothing to measure")


def selected(values: dict, only: Sequence[str]) -> bool:
    """Whether a case has, for every name in `only` ("name=value"), one of the values given for it."""
    wanted: dict[str, set[str]] = {}
    for condition in only:
        name, _, value = condition.partition("=")
        wanted.setdefault(name, set()).add(value)
    return all(str(values.get(name)) in allowed for name, allowed in wanted.items())


def main(op: str, cases: Callable[[], Iterable[Case]]) -> None:
    """Command line of an operator's bench: test, measure every case, print a table, append to the log."""
    parser = argparse.ArgumentParser(description=cases.__doc__)
    parser.add_argument(
        "--log", type=Path, default=Path("docs/log") / f"{op}.jsonl", help="JSON-lines log to append to"
    )
    parser.add_argument(
        "--skip-tests", action="store_true", help="measure without testing first; prints no speedup"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="measure only cases with this value; repeat for several values of a name, or several names",
    )
    options = parser.parse_args()
    if not options.skip_tests:
        require_green(op)
    where = machine()
    for case in (case for case in cases() if selected(case.values, options.only)):
        times = measure(case.contenders, min_calls=case.min_calls)
        results = [
            Result(op, case.values, name, time, case.moved_bytes, machine=where)
            for name, time in times.items()
        ]
        append(options.log, results)
        print(describe(case, times, speedup=not options.skip_tests), flush=True)


def describe(case: Case, times: dict[str, Timing], *, speedup: bool = True) -> str:
    """One line for people: µs, GB/s and share of the byte floor of our kernel, then every peer."""
    floor = case.moved_bytes / H200_BYTES_PER_S * 1e6
    mine = times[case.ours].median_us
    label = " ".join(f"{name}={value}" for name, value in case.values.items())
    rate = f"{mine:7.2f} us  {case.moved_bytes / mine / 1e3:5.0f} GB/s  {floor / mine:4.0%} of floor"
    peers = [(name, t.median_us) for name, t in times.items() if name != case.ours]
    beside = [f"{name} {us:.2f}" + (f" ({us / mine:.2f}x)" if speedup else "") for name, us in peers]
    return f"{label:28s} {rate}  | " + ", ".join(beside)
