"""Host facts: from fake roots and fake tools, so that every shape of a machine can be tried."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from k3ctl.host import (
    collect,
    imex_domain,
    kernel_log,
    machine,
    network,
    packages,
    services,
    settings,
    storage,
)
from k3ctl.host.facts import process
from k3ctl.host.shell import MISSING, TIMED_OUT, Output, run
from k3ctl.host.types import Xid


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def tools(answers: Mapping[str, str]) -> object:
    def fake(argv: Sequence[str], timeout_s: float) -> Output:
        return Output(0, answers[argv[0]]) if argv[0] in answers else Output(MISSING, "")

    return fake


# machine


def test_gpu_memory_that_appears_as_numa_nodes_is_no_host_memory(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 3000 kB\nMemAvailable: 2900 kB\n",
            "sys/devices/system/node/node0/cpulist": "0-71\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1000 kB\n",
            "sys/devices/system/node/node2/cpulist": "\n",
            "sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 2000 kB\n",
        },
    )
    assert machine.memory_bytes(root) == (1000 * 1024, 1000 * 1024)
    assert [(node.node, node.cpus) for node in machine.numa(root)] == [(0, "0-71"), (2, "")]


def test_an_ordinary_host_counts_all_its_memory(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": "MemTotal: 3000 kB\nMemAvailable: 2900 kB\n"})
    assert machine.memory_bytes(root) == (3000 * 1024, 2900 * 1024)


def test_the_smallest_cgroup_limit_on_the_way_down_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.max": "4096\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
        },
    )
    assert machine.cgroup_limits(root) == (4096, 1.5)


def test_without_a_cgroup_limit_there_is_none(tmp_path: Path) -> None:
    root = tree(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096)})
    assert machine.cgroup_limits(root) == (None, None)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({".dockerenv": ""}, "container"),
        ({"proc/1/cgroup": "0::/kubepods/pod1"}, "container"),
        ({"proc/cpuinfo": "flags : fpu hypervisor sse"}, "vm"),
        ({"proc/cpuinfo": "flags : fpu sse"}, "none"),
    ],
    ids=["docker", "kubernetes", "vm", "bare"],
)
def test_containers_and_vms_are_told_apart(tmp_path: Path, files: Mapping[str, str], kind: str) -> None:
    assert machine.virtualization(tree(tmp_path, files)) == kind


# storage


def test_the_cache_follows_hugging_faces_own_precedence(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert storage.caches(home)["hf-cache"] == tmp_path / ".cache/huggingface/hub"
    assert storage.caches(home | {"XDG_CACHE_HOME": "/x"})["hf-cache"] == Path("/x/huggingface/hub")
    assert storage.caches(home | {"HF_HOME": "/h"})["xet-cache"] == Path("/h/xet")
    assert storage.caches(home | {"HF_HOME": "/h", "HF_HUB_CACHE": "/c"})["hf-cache"] == Path("/c")


def test_space_is_read_where_a_symlinked_cache_really_lies(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    disk = storage.disks({"HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "link" / "not-yet")})[0]
    assert disk.resolved == str(tmp_path / "real" / "not-yet")
    assert disk.free_bytes
    assert disk.fs_type


def test_weight_files_of_the_fullest_snapshot_count(tmp_path: Path) -> None:
    tree(tmp_path, {f"models--moonshotai--Kimi-K3/snapshots/a/{n}.safetensors": "" for n in range(3)})
    tree(tmp_path, {"models--moonshotai--Kimi-K3/snapshots/b/0.safetensors": ""})
    assert storage.k3_shards(tmp_path) == 3
    assert storage.k3_shards(tmp_path / "absent") == 0


# environment


def test_who_set_a_variable_is_found(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "etc/profile.d/site.sh": "# site\nexport NCCL_NVLS_ENABLE=0\n",
            "etc/nccl.conf": "NCCL_CUMEM_ENABLE=0\n",
            "proc/1/environ": "VLLM_USE_V2_MODEL_RUNNER=0\0",
        },
    )
    env = {"NCCL_NVLS_ENABLE": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "HF_HOME": "/h"}
    origin = {s.name: s.origin for s in settings.settings(env, root)}
    assert origin["NCCL_NVLS_ENABLE"] == f"{root}/etc/profile.d/site.sh:2"
    assert origin["NCCL_CUMEM_ENABLE"] == f"{root}/etc/nccl.conf"
    assert "process 1" in origin["VLLM_USE_V2_MODEL_RUNNER"]
    assert "calling shell" in origin["HF_HOME"]


def test_credentials_never_enter_a_report() -> None:
    env = {"HF_TOKEN": "x", "VLLM_API_KEY": "x", "NCCL_DEBUG": "INFO", "PATH": "/bin"}
    assert settings.relevant(env) == {"NCCL_DEBUG": "INFO"}


# services, IMEX, network ports


def test_units_are_read_from_systemd_and_the_managers_version_from_its_binary() -> None:
    shown = (
        "Id=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState=active\n\n"
        "Id=nvidia-imex.service\nLoadState=not-found\nActiveState=inactive\n\n"
        "Id=nvlsm.service\nLoadState=loaded\nActiveState=failed\n"
    )
    answers = {"systemctl": shown, "nv-fabricmanager": "Fabric Manager version is : 580.105.08\n"}
    found = services.services(tools(answers))  # type: ignore[arg-type]
    assert found["nvidia-fabricmanager"].version == "580.105.08"
    assert found["nvidia-imex"] == services.ABSENT
    assert found["nvlsm"].active == "failed"


def test_a_host_without_systemd_has_no_units() -> None:
    assert services.services(tools({})) == dict.fromkeys(services.UNITS, services.ABSENT)  # type: ignore[arg-type]


def test_imex_channels_are_the_device_files(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "dev/nvidia-caps-imex-channels/channel0": "",
            "dev/nvidia-caps-imex-channels/channel12": "",
            "proc/devices": "Character devices:\n234 nvidia-caps-imex-channels\n",
        },
    )
    found = services.imex(root, tools({"nvidia-imex-ctl": "READY\n"}))  # type: ignore[arg-type]
    assert (found.channels, found.proc_devices_major, found.ctl_query) == ((0, 12), 234, "READY")


def test_rdma_ports_come_from_sysfs(tmp_path: Path) -> None:
    base = "sys/class/infiniband/mlx5_0/"
    root = tree(
        tmp_path,
        {
            base + "device/numa_node": "1\n",
            base + "ports/1/state": "1: DOWN\n",
            base + "ports/1/rate": "400 Gb/sec (4X NDR)\n",
            base + "ports/1/link_layer": "InfiniBand\n",
        },
    )
    (nic,) = services.nics(root)
    assert (nic.name, nic.numa, nic.rate_gbps, nic.state) == ("mlx5_0", 1, 400, "DOWN")


def test_a_hosts_own_address_and_its_name_are_both_kept_in_the_imex_domain() -> None:
    domain = imex_domain.parse(
        '{"status":"UP","nodes":{"0":{"status":"READY","host":"192.0.2.1","hostName":"t0"}}}'
    )
    assert (domain.nodes[0].host, domain.nodes[0].name) == ("192.0.2.1", "t0")


def test_the_imex_table_with_host_names_is_read_too() -> None:
    table = (
        "Node #0   * 192.0.2.11 (tray0) *  - READY        - Version: 580.1\n"
        "Node #1   - 192.0.2.12 (tray1)    - READY        - Version: 580.1\n"
        "Domain State: UP\n"
    )
    domain = imex_domain.parse(table)
    assert [(node.host, node.status, node.version) for node in domain.nodes] == [
        ("192.0.2.11", "READY", "580.1"),
        ("192.0.2.12", "READY", "580.1"),
    ]


def test_a_port_that_is_bound_is_not_free() -> None:
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        number = busy.getsockname()[1]
        assert [port.free for port in network.ports([(number, "test")])] == [False]


def test_a_name_that_does_not_resolve_has_no_address() -> None:
    assert network.addresses("no-such-host.invalid", limit_s=5) in ((), None)


# kernel log


def test_one_fault_is_listed_once_however_often_the_log_repeats_it() -> None:
    line = "[1.0] NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python, Ch 1\n"
    assert kernel_log.parse(line * 50) == (
        Xid(bus_id="00000000:1B:00.0", code=31, pid=7, process="python", text="Ch 1"),
    )


def test_off_the_bus_with_an_xid_is_not_counted_twice() -> None:
    log = (
        "NVRM: GPU at PCI:0000:1b:00: GPU-1\n"
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.\n"
    )
    assert [fault.code for fault in kernel_log.parse(log)] == [79]


def test_an_unreadable_kernel_log_is_unknown_not_clean() -> None:
    assert kernel_log.read(lambda argv, limit: Output(1, "", "Operation not permitted")) is None


# libraries and tools


def test_the_nccl_that_would_win_comes_first(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2.30.7").touch()
    (tmp_path / "libnccl.so.2").symlink_to(tmp_path / "libnccl.so.2.30.7")
    found = packages.nccl({"LD_LIBRARY_PATH": str(tmp_path)}, {"nvidia-nccl-cu13": "2.28.9"})
    assert [(lib.version, lib.origin) for lib in found[:2]] == [
        ("2.30.7", "LD_LIBRARY_PATH"),
        ("2.28.9", "wheel"),
    ]


def test_a_tool_that_hangs_or_is_missing_is_an_answer() -> None:
    assert run(["sleep", "5"], 0.1).code == TIMED_OUT
    assert run(["no-such-tool-anywhere"], 1).code == MISSING


def test_a_process_on_a_gpu_is_named_where_it_can_be_seen() -> None:
    import os

    here = process(0, os.getpid(), 7)
    assert here.name
    assert here.parent == os.getppid()
    assert process(0, 2**22 + 1, None).name is None


def test_a_process_on_a_gpu_belongs_to_the_run_whose_session_it_is_in() -> None:
    import os

    assert process(0, os.getpid(), 7, {os.getsid(0): "a-run"}).run == "a-run"
    assert process(0, os.getpid(), 7, {2**22 + 1: "another"}).run is None


def test_collecting_needs_no_tool_at_all() -> None:
    host = collect({}, exec_=tools({}))  # type: ignore[arg-type]
    assert host.memlock_bytes is not None
    assert host.memory_total_bytes
    assert host.collected_at
