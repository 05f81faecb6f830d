"""The gateway reads everything and raises for nothing; the fake behind it is faithful to the binding."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pynvml
import pytest

from k3ctl.checks import evaluate
from k3ctl.gpus import Refused, Snapshot, collect, from_json, to_json
from k3ctl.gpus import nvml as gateway
from k3ctl.gpus import snapshot as snapshot_here
from k3ctl.gpus.types import Fabric, Node, Platform
from tests.doctor.fake_nvml import FakeNvml

FIXTURES = Path(__file__).parent.parent / "fixtures"
SNAPSHOTS = sorted(p for p in FIXTURES.glob("nvml-*.json") if p.name != "nvml-schema.json")
Load = Callable[[str], Snapshot]


def read(node: Node) -> Node:
    system, gpus, pairs = gateway.read(FakeNvml(node), node.cpu.count)
    return replace(node, nvml=system, gpus=gpus, pairs=pairs)


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name)
def test_reading_a_played_back_host_gives_the_snapshot_again(path: Path) -> None:
    snapshot, _ = from_json(json.loads(path.read_text(encoding="utf-8")))
    for node in snapshot.nodes:
        again = read(node)
        # a link that is down has nothing more to tell, and a driver that does not start knows no version
        assert to_json(Snapshot((again,)))["nodes"] == to_json(Snapshot((node,)))["nodes"]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        json.loads((FIXTURES / "nvml-schema.json").read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name)
def test_a_snapshot_is_valid_against_the_published_schema(
    path: Path, validator: jsonschema.Draft202012Validator
) -> None:
    snapshot, _ = from_json(json.loads(path.read_text(encoding="utf-8")))
    assert [error.message for error in validator.iter_errors(to_json(snapshot))] == []


def test_this_machine_gives_a_valid_snapshot(validator: jsonschema.Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(to_json(snapshot_here()))] == []


def test_every_played_function_has_the_name_and_parameters_of_the_binding() -> None:
    names = [name for name in dir(FakeNvml) if name.startswith("nvml")]
    assert len(names) > 50
    for name in names:
        real = inspect.signature(getattr(pynvml, name)).parameters
        fake = list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:]
        assert len(fake) <= len(real), name
        required = [p for p in real.values() if p.default is p.empty]
        assert len(fake) >= len(required), name


def test_the_gateway_uses_the_bindings_numbers() -> None:
    assert pynvml.NVML_FI_DEV_MEMORY_TEMP == gateway.FIELD_MEMORY_TEMP
    assert pynvml.NVML_FI_DEV_NVLINK_GET_SPEED == gateway.FIELD_LINK_SPEED
    assert pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == gateway.FIELD_RECOVERY_ACTION
    assert pynvml.NVML_ERROR_INVALID_ARGUMENT == gateway.INVALID_ARGUMENT
    assert pynvml.NVML_ERROR_NOT_SUPPORTED == gateway.NOT_SUPPORTED
    assert pynvml.NVML_ERROR_FUNCTION_NOT_FOUND == gateway.FUNCTION_NOT_FOUND


def test_without_the_binding_the_answer_says_so() -> None:
    system, gpus, pairs = gateway.read(None, 8)
    assert system.error == gateway.NO_BINDING
    assert (gpus, pairs) == ((), ())


def test_a_function_that_the_binding_lacks_is_a_refused_value(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetModuleId")
    gpu = read(load("hgx-h200").nodes[0]).gpus[0]
    assert gpu.module_id == Refused("FunctionNotFound", 13)
    assert gpu.name == "NVIDIA H200"


def test_an_answer_that_cannot_be_decoded_is_a_refused_value(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undecodable(self: FakeNvml, handle: object) -> str:
        return b"\xff".decode()

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetVbiosVersion", undecodable)
    gpu = read(load("hgx-h200").nodes[0]).gpus[0]
    assert isinstance(gpu.vbios, Refused)
    assert "utf-8" in gpu.vbios.na


def test_a_guid_with_bytes_above_0x7f_is_read_raw(load: Load) -> None:
    node = load("gb300-nvl72-tray").nodes[0]
    place = Platform(ib_guid="ff" * 16, chassis_serial="1", slot=200, tray=255)
    node = replace(node, gpus=(replace(node.gpus[0], platform=place),), pairs=())
    assert read(node).gpus[0].platform == place
    with pytest.raises(UnicodeDecodeError):  # what the binding itself does with such a byte
        info = pynvml.c_nvmlPlatformInfo_v2_t()
        info.ibGuid = b"\xff"
        _ = info.ibGuid


def test_a_driver_that_knows_only_fabric_version_2_is_read_with_version_2(load: Load) -> None:
    fabric = read(load("gb300-old-driver").nodes[0]).gpus[0].fabric
    assert isinstance(fabric, Fabric)
    assert (fabric.version, fabric.health_summary) == (2, None)


def test_nvml_is_shut_down_also_when_reading_fails(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(load("hgx-h200").nodes[0])
    monkeypatch.setattr(gateway, "_pairs", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gateway.read(fake, 8)
    assert not fake.initialized


def test_a_driver_that_never_answers_is_given_up(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    forever = threading.Event()
    monkeypatch.setattr(FakeNvml, "nvmlInit", lambda self: forever.wait())
    monkeypatch.setattr(collect, "NVML_LIMIT_S", 0.2)
    shot, _ = collect.read_node(FakeNvml(load("hgx-h200").nodes[0]))
    forever.set()
    assert shot.nodes[0].nvml.error == collect.NO_ANSWER
    assert {finding.id for finding in evaluate(shot)} == {"driver.nvml-error"}


def test_an_8_gpu_board_takes_a_bounded_number_of_calls(load: Load) -> None:
    fake = FakeNvml(load("hgx-b300").nodes[0])
    gateway.read(fake, 256)
    assert fake.calls < 1500  # at 1 ms each, slow for NVML, the 2 s budget still holds


def test_a_process_whose_memory_is_hidden_has_no_size(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    def hidden(self: FakeNvml, handle: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=2**64 - 1)]

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetComputeRunningProcesses", hidden)
    processes = read(load("hgx-h200").nodes[0]).gpus[0].processes
    assert processes
    assert [p.bytes for p in processes] == [None, None]
