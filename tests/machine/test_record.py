"""One record of a machine, whichever version of a report it was saved in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.engine import rundir
from k3ctl.errors import UsageError
from k3ctl.gpus.types import GpuProcess, NvmlSystem, Snapshot
from k3ctl.host.types import Host
from k3ctl.machine import read, record
from k3ctl.machine.record import Machine

FIXTURES = Path(__file__).parent.parent / "fixtures"
SAVED = sorted(path.name for path in FIXTURES.glob("nvml-*.json") if path.name != "nvml-schema.json")


def bare(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


def machines_of(data: Any) -> tuple[Machine, ...]:
    return record.from_json(data, source="a file")[0]


@pytest.mark.parametrize("name", SAVED)
def test_what_is_written_comes_back(name: str) -> None:
    old = machines_of(bare(name))
    assert old and all(machine.host is None for machine in old)
    with_hosts = tuple(replace(machine, host=Host(machine.hostname, collected_at=1.0)) for machine in old)
    assert machines_of(json.loads(json.dumps(record.to_json(with_hosts)))) == with_hosts


def test_the_data_its_envelope_and_the_older_snapshot_are_one_machine() -> None:
    data = record.to_json(machines_of(bare("nvml-hgx-h200.json")))
    node = machines_of(data)[0].node
    for form in (
        data,
        {"envelope": "k3ctl.result/1", "data": data},
        data["snapshot"],
        bare("nvml-hgx-h200.json"),
    ):
        assert machines_of(form)[0].node == node


def test_a_damaged_host_costs_itself_only() -> None:
    data = record.to_json(machines_of(bare("nvml-hgx-h200.json")))
    name = data["snapshot"]["nodes"][0]["hostname"]
    broken = {**data, "hosts": [3, {"collected_at": 1.0}, {"hostname": name, "collected_at": "yesterday"}]}
    (machine,), notes = record.from_json(broken, source="f")
    assert machine.host is not None and machine.host.collected_at is None
    assert sum("left out" in note for note in notes) == 2 and any("collected_at" in note for note in notes)
    with pytest.raises(UsageError, match=r"no k3ctl.nvml/1 snapshot"):
        record.from_json({"hosts": []}, source="f")


def test_a_machine_has_one_name() -> None:
    (machine,) = machines_of(bare("nvml-hgx-h200.json"))
    renamed = replace(machine, host=Host(machine.hostname)).named("x#2")
    assert (renamed.hostname, renamed.node.hostname) == ("x#2", "x#2")
    assert renamed.host is not None and renamed.host.hostname == "x#2"
    assert machine.named("y").host is None


def test_runs_are_told_by_the_ids_that_are_passed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    (saved,) = machines_of(bare("nvml-hgx-h200.json"))
    holder = replace(saved.node.gpus[0], processes=(GpuProcess(1, 5 << 30),))
    node = replace(saved.node, gpus=(holder,), nvml=NvmlSystem(driver="580.1"))
    monkeypatch.setattr(read.collect, "read_node", lambda *_: (Snapshot((node,)), read.cuda.CudaAnswer()))
    monkeypatch.setattr(rundir, "all_runs", lambda: pytest.fail("a machine is read without looking for runs"))
    session = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[3])

    def told(runs: dict[int, str] | None) -> str | None:
        host = read.read(runs=runs).host
        assert host is not None
        return host.processes[0].run

    assert told(None) is None
    assert told({session: "a-run"}) == "a-run"
