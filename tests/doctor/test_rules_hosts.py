"""Rules about hosts, profiles and groups of hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3ctl.checks import evaluate, verdict
from k3ctl.gpus import Snapshot
from k3ctl.host.types import (
    Disk,
    Host,
    Library,
    Port,
)
from k3ctl.profiles.schema import Requires
from tests.doctor.changing import Load, changed, ids

# hosts


GOOD = Host("b300-0", memlock_bytes=-1, nofile=1048576, shm_bytes=64 * 2**30, addresses=("192.0.2.1",))


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (GOOD, set()),
        (replace(GOOD, shm_bytes=64 * 2**20), {"host.shm"}),
        (replace(GOOD, memlock_bytes=8192 * 1024), {"host.memlock"}),
        (replace(GOOD, nofile=1024), {"host.nofile"}),
        (replace(GOOD, addresses=("127.0.1.1",)), {"host.name-is-loopback"}),
        (replace(GOOD, addresses=("::1", "192.0.2.1")), set()),
        (replace(GOOD, addresses=()), {"host.name-unresolved"}),
        (replace(GOOD, addresses=None), set()),
        (replace(GOOD, ports=(Port(8000, "API", False),)), {"host.port-in-use"}),
        (replace(GOOD, disks=(Disk("hf-cache", "/d", free_bytes=10**11),)), {"disk.space"}),
        (replace(GOOD, disks=(Disk("hf-cache", "/d", free_bytes=10**13, fs_type="nfs4"),)), {"disk.network"}),
        (replace(GOOD, disks=(Disk("hf-cache", "/d", free_bytes=10**11, shards=96),)), set()),
        (replace(GOOD, disks=(Disk("hf-cache", "/d", free_bytes=10**11, shards=48),)), {"disk.space"}),
        (replace(GOOD, libraries=(Library("nccl", "/x", "2.30.7", "system"),)), {"nccl.nvls-hang-reported"}),
        (replace(GOOD, libraries=(Library("nccl", "/x", "2.28.9", "system"),)), {"nccl.pynccl-off"}),
        (
            replace(
                GOOD,
                libraries=(
                    Library("nccl", "/x", None, "LD_LIBRARY_PATH"),
                    Library("nccl", "w", "2.28.9", "wheel"),
                ),
            ),
            {"nccl.shadowed"},
        ),
        (replace(GOOD, cuda_error=803), {"cuda.init"}),
        (replace(GOOD, cuda_problem="libcuda.so.1: cannot open"), {"cuda.unreachable"}),
        (replace(GOOD, packages={"pynvml": "11.5.0"}), {"driver.shim-package"}),
        (replace(GOOD, memory_total_bytes=2**41, cgroup_memory_bytes=2**35), {"host.cgroup-memory"}),
    ],
    ids=lambda value: "" if isinstance(value, Host) else "+".join(sorted(value)) or "clean",
)
def test_host_rules(load: Load, host: Host, found: set[str]) -> None:
    assert ids(load("hgx-b300"), host) == found


# profiles


def test_a_profile_leaves_out_what_it_does_not_need(load: Load) -> None:
    snapshot = changed(load("hgx-h200"), env={"NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0"})
    assert ids(snapshot) == {"multicast.env-disabled", "env.mnnvl-disabled"}
    assert ids(snapshot, None, Requires(gpus=8, nvlink_domain=True)) == set()


def test_a_profile_without_gpus_ignores_broken_ones(load: Load) -> None:
    assert ids(load("gb300-fabric-in-progress"), None, Requires()) == set()


def test_memory_and_engine_version_are_judged_against_the_profile(load: Load) -> None:
    host = Host("cpu-only", k3ctl="0.1.0", memory_available_bytes=2**30, packages={"vllm": "0.27.1"})
    assert ids(load("no-driver"), host, Requires(memory_gib=3)) == {"profile.memory", "profile.vllm"}
    bare = replace(host, packages={}, memory_available_bytes=2**34)
    assert ids(load("no-driver"), bare, Requires(memory_gib=3)) == {"profile.vllm"}


# groups


def test_skew_of_drivers_nccl_and_engine_between_hosts(load: Load) -> None:
    snapshot = load("gb300-nvl72-2trays")
    one, two = (node.hostname for node in snapshot.nodes)
    hosts = {
        one: Host(one, packages={"vllm": "0.33.0", "torch": "2.14.0"}, collected_at=1000.0),
        two: Host(two, packages={"vllm": "0.33.1", "torch": "2.14.0"}, collected_at=9000.0),
    }
    found = {finding.id for finding in evaluate(snapshot, hosts)}
    assert found == {"vllm.mismatch-between-nodes", "cluster.collected-apart"}
    hosts[one] = Host(one, packages={"torch": "2.13.0"}, libraries=(Library("nccl", "", "2.29.7"),))
    hosts[two] = Host(two, packages={"torch": "2.14.0"}, libraries=(Library("nccl", "", "2.30.7"),))
    found = {finding.id for finding in evaluate(snapshot, hosts)}
    assert found == {"torch.mismatch-between-nodes", "nccl.mismatch-between-nodes"}


def test_different_products_in_one_group_are_a_finding(load: Load) -> None:
    two = Snapshot((load("hgx-b300").nodes[0], load("hgx-h200").nodes[0]))
    assert "product.mixed" in ids(two)


def test_imex_missing_on_one_tray_of_two_blocks_the_group(load: Load) -> None:
    good = load("gb300-nvl72-tray").nodes[0]
    bad = replace(load("gb300-imex-missing").nodes[0], hostname="tray01")
    findings = evaluate(Snapshot((good, bad)))
    assert [f.evidence for f in findings if f.id == "cluster.imex-not-everywhere"] == [
        "IMEX not usable on tray01"
    ]
    assert verdict(Snapshot((good, bad))).imex == "missing"
