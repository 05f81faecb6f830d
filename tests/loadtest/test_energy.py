"""Joules from power samples: consumption that is known in closed form, and every way to spoil the reading."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.engine import rundir
from k3ctl.loadtest import compare, energy, gate, guards, power, summary, view
from k3ctl.loadtest.energy import Energy
from k3ctl.loadtest.guards import GuardEvidence
from k3ctl.loadtest.power import GpuPower, PowerLog, PowerSample, PowerSampler
from k3ctl.loadtest.rows import Row
from tests.loadtest import results
from tests.loadtest.results import K3_TARGET
from tests.loadtest.test_guards import GOOD, LOAD

START, END = 1000.0, 1060.0


def reading(ts: float, index: int, **changes: Any) -> GpuPower:
    """GPU ``index`` draws 400 W + 100 W · index, and has since the epoch; its counter moves every 100 ms."""
    watts = 400 + 100 * index
    counted = round(ts * 10) / 10
    made = GpuPower(index, int(watts * counted * 1000), watts * 1000, own=1, foreign=0, unseen=0)
    return replace(made, **changes)


def log(
    times: Iterable[float] | None = None, spoil: Callable[[float, int], dict[str, Any]] | None = None
) -> PowerLog:
    """Two GPUs read four times a second from before the window until after it."""
    moments = [START - 2 + 0.25 * n for n in range(4 * 64 + 1)] if times is None else list(times)
    spoiled = spoil or (lambda _ts, _index: {})
    return PowerLog(
        tuple(
            PowerSample(ts, tuple(reading(ts, index, **spoiled(ts, index)) for index in (0, 1)))
            for ts in moments
        ),
        (0, 1),
        "",
    )


def measured(found: PowerLog, gpus: int | None = 2) -> Energy:
    return energy.in_window(found, START + 0.13, END - 0.21, gpus)


def test_constant_power_gives_power_times_time_at_any_window_edge() -> None:
    used = measured(log())
    assert (used.valid, used.method) == (True, "counter")
    assert used.window_s == pytest.approx(59.66)
    # the counter is up to 50 ms old at each edge
    assert used.joules[0] == pytest.approx(400 * 59.66, rel=2e-3)
    assert used.joules[1] == pytest.approx(500 * 59.66, rel=2e-3)


def test_without_a_counter_power_is_integrated() -> None:
    used = measured(log(spoil=lambda _ts, _i: {"energy_mj": None}))
    assert (used.valid, used.method) == (True, "power")
    assert used.joules[1] == pytest.approx(500 * 59.66)


def test_a_ramp_is_integrated_between_the_edges_and_not_between_the_samples() -> None:
    points = [(0.0, 0.0), (10.0, 100.0)]
    assert energy.integral(points, 2.5, 7.5) == pytest.approx((75**2 - 25**2) / 20)
    assert energy.at(points, 2.5) == 25.0
    assert (energy.at(points, -1), energy.at(points, 11)) == (0.0, 100.0)


def test_joules_per_token_are_watts_over_tokens_per_second() -> None:
    row = replace(GOOD, output_tok_s=100.0, total_tok_s=900.0, request_s=0.1)
    told = energy.figures(measured(log()), row)
    assert told["watts"] == pytest.approx(900, rel=2e-3)
    assert told["joules_per_output_token"] == pytest.approx(9.0, rel=2e-3)
    assert told["joules_per_total_token"] == pytest.approx(1.0, rel=2e-3)
    assert told["joules_per_query"] == pytest.approx(9000, rel=2e-3)
    assert [gpu["index"] for gpu in told["per_gpu"]] == [0, 1]
    assert told["per_gpu"][1]["joules_per_output_token"] == pytest.approx(5.0, rel=2e-3)
    assert sum(gpu["joules"] for gpu in told["per_gpu"]) == pytest.approx(told["joules"])


def test_an_unknown_rate_gives_no_figure() -> None:
    told = energy.figures(measured(log()), replace(GOOD, total_tok_s=None, request_s=0.0))
    assert told["joules_per_total_token"] is None
    assert told["joules_per_query"] is None


def one_gpu(index: int, **changes: Any) -> Callable[[float, int], dict[str, Any]]:
    return lambda _ts, at: changes if at == index else {}


def between(start: float, end: float, **changes: Any) -> Callable[[float, int], dict[str, Any]]:
    return lambda ts, at: changes if at == 0 and start <= ts <= end else {}


SPOILED: dict[str, tuple[PowerLog, str]] = {
    "no counter and no power": (
        log(spoil=one_gpu(1, energy_mj=None, power_mw=None)),
        "GPU 1: no energy counter and no power",
    ),
    "a counter that is missing once, without power": (
        log(spoil=lambda ts, i: {"power_mw": None} | ({"energy_mj": None} if (ts, i) == (1030.0, 0) else {})),
        "GPU 0: no energy counter",
    ),
    "a gap": (log([990, 1000, 1010, 1013.5, *range(1014, 1070)]), "no reading for 10.0 s"),
    "readings that start too late": (log([START + 1 + n / 4 for n in range(300)]), "do not reach over"),
    "readings that end too soon": (log([START - 2 + n / 4 for n in range(200)]), "do not reach over"),
    "one reading": (log([1030.0]), "do not reach over"),
    "no reading": (log([]), "do not reach over"),
    "a reset": (
        log(spoil=lambda ts, i: {"energy_mj": int(400 * (ts - 1040) * 1000)} if i == 0 and ts > 1040 else {}),
        "GPU 0: the energy counter was reset",
    ),
    "another's load for one reading": (
        log(spoil=between(1030, 1030.1, foreign=1)),
        "GPU 0 carried another process's load",
    ),
    "a process of another namespace": (
        log(spoil=between(1030, 1030.1, unseen=1)),
        "GPU 0 carries a process that this host does not show",
    ),
    "processes that NVML does not tell": (
        log(spoil=between(1030, 1030.1, own=None, foreign=None, unseen=None)),
        "does not tell its processes",
    ),
    "a counter that stands still": (log(spoil=one_gpu(0, energy_mj=7)), "moves every"),
    "a counter that disagrees with the power": (
        log(spoil=one_gpu(0, power_mw=300_000)),
        "GPU 0: its counter says",
    ),
    "a clock that went back": (log([*range(995, 1040), *range(1020, 1070)]), "went backwards"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_reading_is_not_valid_and_says_why(name: str) -> None:
    found, reason = SPOILED[name]
    used = measured(found)
    assert not used.valid
    assert any(reason in text for text in used.reasons), used.reasons


@pytest.mark.parametrize("name", SPOILED)
def test_nothing_that_is_added_makes_a_spoiled_reading_valid(name: str) -> None:
    """Worsen it further: a second fault never cancels the first."""
    found, _ = SPOILED[name]
    for worse in (
        replace(found, samples=found.samples[::2]),
        replace(found, samples=found.samples[:-40]),
        replace(found, unknown="nobody looked"),
    ):
        assert not measured(worse).valid


def test_a_load_before_the_window_is_none_in_it() -> None:
    assert measured(log(spoil=between(0, START - 1, foreign=1))).valid


@pytest.mark.parametrize(
    ("seconds", "valid"), [(59.0, True), (3.0, True), (2.0, False), (0.3, False), (0.05, False)]
)
def test_a_window_must_be_long_against_the_counters_update(seconds: float, valid: bool) -> None:
    """Read four times a second, the counter is seen to move every 0.25 s: a tenth of 2.5 s."""
    used = energy.in_window(log(), START, START + seconds, 2)
    assert used.valid == valid
    assert valid or "is short for a counter that moves every" in used.reasons[-1]


@pytest.mark.parametrize(("start", "end"), [(None, END), (START, None), (END, START), (START, START)])
def test_a_client_without_a_window_gives_no_joules(start: float | None, end: float | None) -> None:
    assert "does not say when" in energy.in_window(log(), start, end, 2).reasons[0]


def test_only_the_gpus_that_serve_are_counted() -> None:
    idle = log(spoil=one_gpu(1, own=0))
    assert set(measured(idle, gpus=1).joules) == {0}


def test_which_gpus_serve_must_be_known() -> None:
    nobody = log(spoil=lambda _ts, _i: {"own": 0})
    assert measured(nobody, gpus=2).valid  # both visible ones serve: there are no others
    assert measured(nobody, gpus=1).reasons == ("which of the 2 visible GPUs serve is not known",)
    assert measured(nobody, gpus=None).reasons == ("which of the 2 visible GPUs serve is not known",)
    assert measured(log(), gpus=8).reasons == ("2 of the server's 8 GPUs were read on this host",)


def finding(used: Energy) -> list[str]:
    found = guards.judge(GuardEvidence(GOOD, LOAD, K3_TARGET.deployment, None, None, None, used))
    return [f"{one.level}: {one.text}" for one in found if one.guard == "energy"]


def test_the_guard_speaks_where_power_was_read_and_is_not_valid() -> None:
    spoiled = measured(SPOILED["a reset"][0])
    (text,) = finding(spoiled)
    assert text.startswith("note: no joules per token: GPU 0: the energy counter was reset")
    assert finding(measured(log())) == []
    assert finding(measured(power.NO_POWER)) == []


def bundle(directory: Path, found: PowerLog | None) -> dict[str, Any]:
    """The summary of a recorded result with a power log beside it."""
    raw = results.make(directory) / "raw"
    if found is not None:
        lines = [{"schema": power.SCHEMA, "visible": list(found.visible), "unknown": found.unknown}]
        lines += [{"ts": s.ts, "gpus": [vars(gpu) for gpu in s.gpus]} for s in found.samples]
        (raw / power.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"ts": 1, "gp')
    return summary.summarize(raw)


def over_the_row(row: Row | dict[str, Any], factor: float = 1.0) -> PowerLog:
    """Eight GPUs at 500 W over the recorded row's window."""
    report = json.loads((results.FIXTURES / "guidellm-8k1k-consistent-c4.json").read_text())
    scheduler = report["benchmarks"][0]["scheduler_metrics"]
    start, end = scheduler["measure_start_time"], scheduler["measure_end_time"]
    count = int((end - start) / 0.25) + 9
    made = []
    for ts in (start - 1 + 0.25 * n for n in range(count)):
        joule = 500 * factor * (ts - start + 100)
        made.append(
            PowerSample(
                ts,
                tuple(GpuPower(i, int(1000 * joule), int(500_000 * factor), 1, 0, 0) for i in range(8)),
            )
        )
    return PowerLog(tuple(made), tuple(range(8)), "")


def test_a_bundle_tells_its_joules_and_the_table_shows_them(tmp_path: Path) -> None:
    found = bundle(tmp_path / "a", over_the_row({}))
    (row,) = found["rows"]
    assert row["energy"]["valid"], row["energy"]["reasons"]
    assert row["energy"]["joules_per_output_token"] == pytest.approx(4000 / row["output_tok_s"], rel=1e-3)
    names, cells = view.tables(found)[-1][1:]
    assert names[:2] == ["c", "J/out tok"]
    assert cells[0][names.index("W/GPU")] == "500"


def test_without_power_there_is_no_table_of_energy(tmp_path: Path) -> None:
    found = bundle(tmp_path / "a", None)
    assert found["rows"][0]["energy"]["reasons"] == ["power was not sampled"]
    assert len(view.tables(found)) == 2


def test_the_gate_sees_more_joules_and_misses_lost_ones(tmp_path: Path) -> None:
    base = bundle(tmp_path / "base", over_the_row({}))
    same = bundle(tmp_path / "same", over_the_row({}))
    hungry = bundle(tmp_path / "hungry", over_the_row({}, factor=1.4))
    without = bundle(tmp_path / "without", None)

    def outcome(new: dict[str, Any]) -> dict[str, str]:
        verdicts, _ = gate.gate(base, new, threshold=0.03, varied=frozenset({"path"}))
        return {verdict.metric: verdict.outcome for verdict in verdicts}

    assert outcome(same)["joules_per_output_token"] != "regression"
    assert outcome(hungry)["joules_per_output_token"] == "regression"
    assert "joules_per_output_token" not in outcome(without)
    assert gate.missing(base, same) == []
    assert gate.missing(base, without) == ["c=4: no joules_per_output_token in the new bundle"]
    assert gate.missing(without, base) == []
    assert compare.measured(without["rows"][0], "joules_per_output_token") is None


class FakeNvml:
    """Two GPUs of which the second has no energy counter; ``pids`` is what runs on them."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def __init__(self, pids: Iterable[int], *, starts: bool = True) -> None:
        self.pids, self.starts, self.shut = list(pids), starts, False

    def nvmlInit(self) -> None:
        if not self.starts:
            raise self.NVMLError(9)

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError(3)
        return 5000

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 250_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [type("P", (), {"pid": pid}) for pid in self.pids]


def run_on_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: int) -> Any:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    made = rundir.create(
        rundir.Run(
            id="r1",
            profile="p",
            url="http://127.0.0.1:1",
            host="127.0.0.1",
            port=1,
            served_model_name="m",
            tokenizer="t",
            argv=(),
            env={},
            started_at=1.0,
            session=session,
            launch={"gpus": [{"index": 0}, {"index": 1}]},
        )
    )
    return replace(K3_TARGET, run_dir=str(made.dir))


def test_the_sampler_writes_whose_processes_it_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getsid(0)
    target = run_on_two_gpus(tmp_path / "state", monkeypatch, mine)
    fake = FakeNvml([os.getpid(), 1 if os.getsid(1) != mine else os.getpid(), 2**22 + 7])
    with PowerSampler(target, tmp_path, nv=fake, interval_s=0.01):
        for _ in range(500):
            if len(power.read(tmp_path).samples) >= 3:
                break
            time.sleep(0.02)
    found = power.read(tmp_path)
    assert found.visible == (0, 1)
    assert len(found.samples) >= 3
    first = found.samples[0].gpus
    assert (first[0].energy_mj, first[1].energy_mj, first[0].power_mw) == (5000, None, 250_000)
    assert (first[0].own or 0) + (first[0].foreign or 0) == 2
    assert first[0].unseen == 1
    assert fake.shut


@pytest.mark.parametrize("case", ["cpu", "foreign server", "no driver", "no record"])
def test_where_nothing_can_be_read_the_log_says_why(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = run_on_two_gpus(tmp_path / "state", monkeypatch, 1)
    nv = FakeNvml([], starts=case != "no driver")
    if case == "cpu":
        target = replace(target, deployment=replace(target.deployment, gpu="none (CPU)"))
    if case == "foreign server":
        target = replace(target, run_dir=None)
    if case == "no record":
        target = replace(target, run_dir=str(tmp_path / "nowhere"))
    with PowerSampler(target, tmp_path, nv=nv):
        pass
    found = power.read(tmp_path)
    assert found.samples == ()
    assert found.unknown
    assert not energy.in_window(found, START, END, 2).valid


def test_a_file_of_another_kind_is_no_power_log(tmp_path: Path) -> None:
    (tmp_path / power.FILE).write_text('{"schema": "other/1"}\n')
    assert power.read(tmp_path) == power.NO_POWER
    (tmp_path / power.FILE).write_text("")
    assert power.read(tmp_path) == power.NO_POWER
