"""The child that talks to libcuda, against a driver whose functions go through real ctypes conversion."""

from __future__ import annotations

import ctypes
import json
import sys
import textwrap
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int
from pathlib import Path
from typing import Any

import pytest

from k3ctl.gpus import cuda, cuda_child
from k3ctl.gpus.types import Gpu, Pci

SIZE, COPIES = 2 * cuda_child.PATTERN_BYTES, 2


class FakeCuda:
    """A driver with ``count`` GPUs whose memory is host memory. Every function is a real ctypes callback."""

    def __init__(self, count: int = 2, ms: float = 1.0) -> None:
        self.count, self.ms = count, ms
        self.memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.results: dict[str, list[int]] = {}
        self.called: list[str] = []
        self.peer = 1
        self.corrupt = False
        for name, signature in cuda_child.SIGNATURES.items():
            setattr(self, name, CFUNCTYPE(c_int, *signature)(self._function(name)))

    def _function(self, name: str) -> Callable[..., int]:
        body = getattr(self, f"do_{name}", lambda *_: None)

        def call(*args: Any) -> int:
            self.called.append(name)
            if self.results.get(name):
                code = self.results[name].pop(0)
                if code:
                    return code
            return body(*args) or 0

        return call

    def do_cuDriverGetVersion(self, out: Any) -> None:
        out[0] = 13000

    def do_cuDeviceGetCount(self, out: Any) -> None:
        out[0] = self.count

    def do_cuDeviceGet(self, out: Any, ordinal: int) -> None:
        out[0] = ordinal

    def do_cuDeviceGetPCIBusId(self, text: Any, size: int, device: int) -> None:
        pass  # c_char_p callbacks get a copy; see `bus_id` below

    def do_cuDeviceGetAttribute(self, out: Any, number: int, device: int) -> None:
        out[0] = int(number in (132, 128))

    def do_cuDeviceCanAccessPeer(self, out: Any, a: int, b: int) -> None:
        out[0] = self.peer

    def do_cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out[0] = 0x1000 + device

    def do_cuMemAlloc_v2(self, out: Any, size: int) -> None:
        block = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(block)] = block
        out[0] = ctypes.addressof(block)

    def do_cuMemcpyHtoD_v2(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def do_cuMemcpyDtoH_v2(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def do_cuMemsetD8_v2(self, target: int, value: int, size: int) -> None:
        ctypes.memset(target, value, size)

    def do_cuMemcpyPeerAsync(self, target: int, _: int, source: int, __: int, size: int, ___: int) -> None:
        ctypes.memmove(target, source, size // 2 if self.corrupt else size)

    def do_cuEventElapsedTime(self, out: Any, begin: int, end: int) -> None:
        out[0] = self.ms

    def do_cuMulticastGetGranularity(self, out: Any, prop: Any, option: int) -> None:
        assert option == cuda_child.GRANULARITY_RECOMMENDED
        out[0] = 2 * 2**20

    def do_cuMulticastCreate(self, out: Any, prop: Any) -> None:
        assert (prop[0].numDevices, prop[0].size) == (self.count, 2 * 2**20)
        out[0] = 77

    def do_cuMemCreate(self, out: Any, size: int, prop: Any, flags: int) -> None:
        assert (prop[0].type, prop[0].locationType) == (1, 1)
        out[0] = 100 + prop[0].locationId


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(cuda_child.Driver, "bus_id", lambda self, device: f"0000:{device + 16:02x}:00.0")
    monkeypatch.setattr(cuda_child.time, "sleep", lambda _: None)
    return FakeCuda()


def copies(fake: FakeCuda) -> list[dict[str, Any]]:
    return list(cuda_child.copy(cuda_child.Driver(fake), SIZE, COPIES))


def test_structures_have_the_sizes_of_the_c_structures() -> None:
    assert ctypes.sizeof(cuda_child.MulticastProp) == 32
    assert ctypes.sizeof(cuda_child.AllocationProp) == 32


def test_attributes_take_no_context_and_no_memory(fake: FakeCuda) -> None:
    answer = cuda_child.attributes(cuda_child.Driver(fake), "/lib/libcuda.so.580.1")
    assert answer["devices"][0] == {
        "bus_id": "0000:10:00.0",
        "multicast": 1,
        "fabric_handle": 1,
        "posix_fd_handle": 0,
        "gpudirect_rdma": 0,
        "dma_buf": 0,
    }
    assert not {"cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMulticastCreate"} & set(fake.called)


def test_a_driver_that_does_not_start_gives_its_code_and_no_devices(fake: FakeCuda) -> None:
    fake.results["cuInit"] = [803]
    answer = cuda_child.attributes(cuda_child.Driver(fake), None)
    assert (answer["init"], answer["devices"]) == (803, [])


def test_every_ordered_pair_is_copied_checked_and_timed(fake: FakeCuda) -> None:
    lines = copies(fake)
    assert [(line["from"], line["to"]) for line in lines] == [
        ("0000:10:00.0", "0000:11:00.0"),
        ("0000:11:00.0", "0000:10:00.0"),
    ]
    expected = round(COPIES * SIZE / 1e-3 / 1e9, 1)
    assert all(line["gb_s"] == expected and line["correct"] and line["peer"] for line in lines)


def test_the_copy_probe_never_touches_multicast(fake: FakeCuda) -> None:
    copies(fake)
    assert not [name for name in fake.called if "Multicast" in name or name == "cuMemCreate"]


def test_bytes_that_do_not_arrive_are_seen(fake: FakeCuda) -> None:
    fake.corrupt = True
    assert [line["correct"] for line in copies(fake)] == [False, False]


def test_a_pair_without_peer_access_is_copied_all_the_same(fake: FakeCuda) -> None:
    fake.peer = 0
    assert [line["peer"] for line in copies(fake)] == [False, False]
    assert "cuCtxEnablePeerAccess" not in fake.called


def test_peer_access_that_is_already_on_is_no_error(fake: FakeCuda) -> None:
    fake.results["cuCtxEnablePeerAccess"] = [704, 704]
    assert all("error" not in line for line in copies(fake))


def test_a_full_gpu_is_named_and_the_others_are_still_probed(fake: FakeCuda) -> None:
    fake.count = 3
    fake.results["cuMemAlloc_v2"] = [2]
    lines = copies(fake)
    assert "out of memory" in lines[0]["error"]
    assert len([line for line in lines if "gb_s" in line]) == 2


def test_a_busy_fabric_manager_is_waited_for(fake: FakeCuda) -> None:
    fake.results["cuInit"] = [802, 802, 0]
    assert len(copies(fake)) == 2
    assert fake.called.count("cuInit") == 3


def test_waiting_for_the_fabric_manager_ends(fake: FakeCuda) -> None:
    fake.results["cuInit"] = [802] * 1000
    with pytest.raises(cuda_child.CudaError, match="802"):
        cuda_child.when_ready(cuda_child.Driver(fake), "cuInit", 0, limit_s=0.6)


def test_multicast_is_bound_on_every_gpu_and_taken_apart(fake: FakeCuda) -> None:
    fake.results["cuMulticastBindMem"] = [802, 0, 0]
    answer = cuda_child.multicast(cuda_child.Driver(fake))
    assert answer["multicast"] == "ok"
    assert fake.called.count("cuMulticastAddDevice") == 2
    assert fake.called.count("cuMulticastUnbind") == 2
    assert fake.called.count("cuMemRelease") == 3


def test_multicast_is_taken_apart_also_after_a_failure(fake: FakeCuda) -> None:
    fake.results["cuMulticastBindMem"] = [1]
    with pytest.raises(cuda_child.CudaError):
        cuda_child.multicast(cuda_child.Driver(fake))
    assert fake.called.count("cuMemRelease") == 2


# the parent

GPUS = (Gpu(0, pci=Pci(bus_id="00000000:10:00.0")), Gpu(1, pci=Pci(bus_id="00000000:11:00.0")))


def program(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "child.py"
    path.write_text("import sys, json, time\n" + textwrap.dedent(body), encoding="utf-8")
    return path


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    path, start = program(tmp_path, body), cuda.start
    monkeypatch.setattr(cuda, "start", lambda action: start(action, path))


def test_without_libcuda_the_answer_says_so() -> None:
    answer = cuda.finish(cuda.start())
    assert (answer.library, answer.init, answer.devices) == (None, None, ())
    assert "libcuda.so.1" in answer.error


def test_a_driver_that_hangs_in_cuinit_is_given_up(tmp_path: Path) -> None:
    child = cuda.start("attributes", program(tmp_path, "time.sleep(60)"))
    assert "no end within 0.3 s" in cuda.finish(child, 0.3).error
    assert child.returncode is not None


def test_attributes_come_under_nvmls_index_by_bus_id() -> None:
    line = dict.fromkeys(cuda_child.ATTRIBUTES, 1)
    found = cuda.by_index([line | {"bus_id": "0000:11:00.0"}, line | {"bus_id": "0000:99:00.0"}], GPUS)
    assert [device.index for device in found] == [1]


def test_lines_written_before_the_time_limit_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"from": "0000:10:00.0", "to": "0000:11:00.0", "peer": True, "gb_s": 370.0, "correct": True}
    played(tmp_path, monkeypatch, f"print({json.dumps(line)!r}, flush=True); time.sleep(60)")
    probe = cuda.probe(GPUS, with_multicast=False, limit_s=1.5)
    assert [(copy.source, copy.target, copy.gb_s) for copy in probe.copies] == [(0, 1, 370.0)]
    assert "no end within 1.5 s" in probe.error
    assert probe.multicast is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(134)", "status 134"),
        ("print('garbage')", "ended early"),
        ('print(json.dumps({"error": "cuInit returned 802", "code": 802}))', "cuInit returned 802"),
    ],
    ids=["dies", "says nothing", "reports an error"],
)
def test_a_child_that_fails_is_an_error_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    played(tmp_path, monkeypatch, body)
    assert said in cuda.probe(GPUS, with_multicast=False).error


def test_multicast_is_probed_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "actions"
    played(
        tmp_path,
        monkeypatch,
        f"""
        open({str(log)!r}, "a").write(sys.argv[1] + " ")
        print(json.dumps({{"done": True, "multicast": "ok"}}))
        """,
    )
    cuda.probe(GPUS, with_multicast=False)
    assert log.read_text() == "copy "
    assert cuda.probe(GPUS, with_multicast=True).multicast == "ok"
    assert log.read_text() == "copy copy multicast "


def test_the_child_imports_nothing_of_k3ctl() -> None:
    code = f"import runpy, sys; runpy.run_path({cuda_child.__file__!r}); print('k3ctl' in sys.modules)"
    import subprocess

    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
