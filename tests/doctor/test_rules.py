"""Rules: their metadata, product classes, health masks, and verdicts on changed snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from k3ctl.checks import RULES, Severity, classify, domains, evaluate, verdict
from k3ctl.checks.domains import HealthMask
from k3ctl.checks.finding import Applies
from k3ctl.checks.multicast import judge
from k3ctl.checks.products import Kind, chip_of
from k3ctl.checks.rules.gpu import RECOVERY_ACTIONS
from k3ctl.gpus import Refused, Snapshot
from k3ctl.gpus.types import Fabric, Gpu, GpuProcess, Link, Memory, Node, NvmlSystem
from k3ctl.host.types import (
    Copy,
    Disk,
    Host,
    ImexDomain,
    ImexNode,
    Library,
    Port,
    Probe,
    Process,
    Service,
    Setting,
    Xid,
)
from k3ctl.profiles.schema import Requires

Load = Callable[[str], Snapshot]


def ids(snapshot: Snapshot, host: Host | None = None, requires: Requires | None = None) -> set[str]:
    return {finding.id for finding in evaluate(snapshot, host, requires)}


def changed(snapshot: Snapshot, **node_values: object) -> Snapshot:
    return replace(snapshot, nodes=(replace(snapshot.nodes[0], **node_values),))  # type: ignore[arg-type]


def with_gpu(snapshot: Snapshot, index: int, **values: object) -> Snapshot:
    gpus = list(snapshot.nodes[0].gpus)
    gpus[index] = replace(gpus[index], **values)  # type: ignore[arg-type]
    return changed(snapshot, gpus=tuple(gpus))


# metadata


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_says_what_to_do_and_where_it_comes_from(rule: object) -> None:
    rule = RULES[rule.id]  # type: ignore[attr-defined]
    assert re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z][a-z0-9-]*", rule.id)
    assert rule.title
    assert not rule.title.endswith(".")
    assert rule.remedy
    assert rule.sources
    for source in rule.sources:
        assert source.url.startswith("https://")
        assert re.fullmatch(r"\d{4}(-\d\d(-\d\d)?)?", source.date)
    if rule.severity is Severity.FAIL:
        assert rule.blocks


def test_a_rule_outside_its_version_range_is_silent(load: Load) -> None:
    snapshot = changed(load("hgx-b300"), env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    host = Host(hostname=snapshot.nodes[0].hostname, packages={"vllm": "0.32.0"})
    assert "env.v1-runner" in ids(snapshot)
    assert "env.v1-runner" in ids(snapshot, replace(host, packages={"vllm": "0.33.0"}))
    assert "env.v1-runner" not in ids(snapshot, host)


def test_version_ranges() -> None:
    applies = Applies("driver", "580", "600.1")
    assert applies.holds(None)
    assert applies.holds("580.105.08")
    assert not applies.holds("570.1")
    assert not applies.holds("600.1")
    assert str(applies) == "driver ≥ 580 and < 600.1"


# products


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA H100-80GB-HBM3", "H100"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ""),
        ("NVIDIA B3000", ""),
    ],
)
def test_chips_are_matched_by_exact_token(name: str, chip: str) -> None:
    assert chip_of(name) == chip


def host_of(*names: str, **values: object) -> Node:
    gpus = tuple(Gpu(i, name=name) for i, name in enumerate(names))
    return Node("n", nvml=NvmlSystem(driver="580.1"), gpus=gpus, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "product", "kind"),
    [
        (host_of("NVIDIA GH200 480GB"), "pcie", Kind.PCIE),
        (host_of(*["NVIDIA H100 PCIe"] * 4), "pcie", Kind.PCIE),
        (host_of(*["NVIDIA B300 SXM6 AC"] * 8), "hgx-b300", Kind.HGX8),
        (host_of(*["NVIDIA H200"] * 2, virt="vm"), "h200-sxm-partial", Kind.HGX8),
        (host_of(*["NVIDIA H200"] * 3, virt="vm"), "hgx-h200", Kind.HGX8),
        (host_of(*["NVIDIA GB200"] * 4), "gb200-nvl72", Kind.NVL72),
        (host_of("NVIDIA A Thing Of 2031"), "pcie", Kind.PCIE),
    ],
    ids=["gh200", "pcie", "board", "vm-2", "vm-3", "tray", "unknown-name"],
)
def test_product_classes(node: Node, product: str, kind: Kind) -> None:
    assert (classify(node).id, classify(node).kind) == (product, kind)


def test_one_gb300_without_nvlink_beside_a_display_card_is_a_workstation() -> None:
    lone = Gpu(0, name="NVIDIA GB300", fabric=Fabric(version=3, state=0))
    node = Node("n", gpus=(Gpu(1, name="NVIDIA RTX PRO 2000"), lone))
    assert (classify(node).id, classify(node).kind) == ("gb300-station", Kind.PCIE)


def test_one_gb300_of_a_tray_in_a_container_is_still_a_tray(load: Load) -> None:
    tray = load("gb300-nvl72-tray").nodes[0]
    node = replace(tray, gpus=tray.gpus[:1], pairs=(), virt="container")
    assert classify(node).id == "gb300-nvl72"
    assert ids(Snapshot((node,))) == {"gpu.subset"}


def test_a_switched_board_of_an_unknown_chip_gets_no_verdict_instead_of_a_wrong_one(load: Load) -> None:
    board = load("hgx-b300")
    gpus = tuple(replace(gpu, name="NVIDIA R900") for gpu in board.nodes[0].gpus)
    renamed = changed(board, gpus=gpus)
    assert ids(renamed) == {"gpu.unknown-product"}
    assert verdict(renamed).multicast == "unknown"


# fabric


def test_0xaa_is_four_times_false_and_no_fault() -> None:
    mask = HealthMask(0xAA)
    assert not (
        mask.degraded_bandwidth or mask.route_recovery or mask.route_unhealthy or mask.access_timeout_recovery
    )
    assert HealthMask(0x19A).route_unhealthy


def test_the_health_mask_is_read_with_the_bindings_shifts_and_values() -> None:
    import pynvml

    def mask(field: str, value: str) -> HealthMask:
        shift = getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{field}")
        return HealthMask(getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_{field}_{value}") << shift)

    assert mask("DEGRADED_BW", "TRUE").degraded_bandwidth
    assert mask("ROUTE_RECOVERY", "TRUE").route_recovery
    assert mask("ROUTE_UNHEALTHY", "TRUE").route_unhealthy
    assert mask("ACCESS_TIMEOUT_RECOVERY", "TRUE").access_timeout_recovery
    assert mask("PARTITION_ASSIGNED", "FALSE").partition_unassigned
    assert mask("GFM_STATE", "DISCONNECTED").manager_disconnected
    assert mask("INCORRECT_CONFIGURATION", "NO_PARTITION").incorrect_configuration == 4


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (0x1AA, set()),
        (0x51AA, set()),
        (0x21AA, {"fabric.no-partition"}),
        (0x81AA, {"fabric.manager-disconnected"}),
        (0x4AA, {"fabric.unhealthy"}),
        (0x1A9, {"fabric.degraded"}),
    ],
    ids=lambda value: hex(value) if isinstance(value, int) else "",
)
def test_each_bit_of_the_mask_has_its_finding(load: Load, mask: int, found: set[str]) -> None:
    tray = load("gb300-nvl72-tray")
    fabric = replace(tray.nodes[0].gpus[0].fabric, health_mask=mask)  # type: ignore[type-var]
    assert ids(with_gpu(tray, 0, fabric=fabric)) == found


def test_a_zero_uuid_is_healthy_on_a_board_and_a_fault_on_a_tray(load: Load) -> None:
    assert ids(load("hgx-b300")) == set()
    tray = load("gb300-nvl72-tray")
    zero = replace(tray.nodes[0].gpus[0].fabric, cluster_uuid="00000000-0000-0000-0000-000000000000")  # type: ignore[type-var]
    assert ids(with_gpu(tray, 0, fabric=zero)) == {"fabric.no-cluster"}


def test_a_fabric_state_of_a_newer_driver_is_reported_and_not_guessed(load: Load) -> None:
    tray = load("gb300-nvl72-tray")
    strange = replace(tray.nodes[0].gpus[0].fabric, state=9)  # type: ignore[type-var]
    changed_tray = with_gpu(tray, 0, fabric=strange)
    assert ids(changed_tray) == {"fabric.unknown-state"}
    assert verdict(changed_tray).nvlink_domain_gpus == 3


def test_a_uuid_on_a_board_does_not_join_two_hosts(load: Load) -> None:
    board = load("hgx-b300-clique").nodes[0]
    two = Snapshot((board, replace(board, hostname="other")))
    assert [domain.size for domain in domains(two)] == [8, 8]


def test_two_trays_with_one_uuid_and_clique_are_one_domain(load: Load) -> None:
    (domain,) = domains([load("gb300-nvl72-4trays")])
    assert (domain.size, domain.largest_k3_tp, domain.specialized_tp) == (16, 16, 16)


def test_a_rack_of_72_gives_the_largest_size_that_divides_the_heads(load: Load) -> None:
    (domain,) = domains(load("gb300-nvl72-18trays"))
    assert (domain.largest_tp, domain.largest_k3_tp) == (72, 48)


# GPUs


@pytest.mark.parametrize("action", [*RECOVERY_ACTIONS, 42])
def test_every_requested_recovery_is_a_finding(load: Load, action: int) -> None:
    wanted = RECOVERY_ACTIONS.get(action, ("gpu.recovery-action", ""))[0]
    assert ids(with_gpu(load("hgx-h200"), 3, recovery_action=action)) == {wanted}


def test_a_gpu_lost_while_it_is_read_is_found(load: Load) -> None:
    lost = with_gpu(load("hgx-h200"), 3, uuid=Refused("GpuIsLost", 15))
    assert ids(lost) == {"gpu.lost"}


def test_an_orphan_engine_is_named_with_its_pid_and_never_ended(load: Load) -> None:
    held = with_gpu(load("hgx-h200"), 0, processes=(GpuProcess(3117, 104277 * 2**20),))
    name = held.nodes[0].hostname
    host = Host(name, processes=(Process(0, 3117, "VLLM::EngineCore", 104277 * 2**20, parent=1),))
    (finding,) = [f for f in evaluate(held, host) if f.id == "gpu.memory-held"]
    assert "pid 3117 (VLLM::EngineCore) holds 101.8 GiB, its parent is gone" in finding.evidence


def test_memory_held_by_a_process_that_is_not_visible_is_found(load: Load) -> None:
    used = with_gpu(load("hgx-h200"), 0, memory=Memory(150 * 2**30, 50 * 2**30, 100 * 2**30), processes=())
    assert ids(used) == {"gpu.memory-held"}


@pytest.mark.parametrize(
    ("reasons", "found"),
    [
        (0x1, set()),
        (0x4, set()),
        (0x48, {"clock.hw-thermal-slowdown"}),
        (0x80, {"clock.hw-slowdown"}),
        (0x8, {"clock.hw-slowdown"}),
        (0x20, {"clock.sw-thermal-slowdown"}),
    ],
    ids=["idle", "power-cap", "hw-thermal", "power-brake", "hw-slowdown", "sw-thermal"],
)
def test_clock_event_reasons(load: Load, reasons: int, found: set[str]) -> None:
    assert ids(with_gpu(load("hgx-h200"), 2, clock_event_reasons=reasons)) == found


def test_uncorrected_errors_are_a_finding_unless_a_remap_explains_them(load: Load) -> None:
    board = load("hgx-h200")
    ecc = replace(board.nodes[0].gpus[0].ecc, volatile_uncorrected=3)
    assert ids(with_gpu(board, 0, ecc=ecc)) == {"memory.uncorrected-ecc"}
    rows = replace(board.nodes[0].gpus[0].remapped_rows, pending=1)  # type: ignore[type-var]
    assert ids(with_gpu(board, 0, ecc=ecc, remapped_rows=rows)) == {"memory.remap-pending"}


def test_a_missing_binding_is_not_taken_for_a_missing_driver() -> None:
    node = Node("n", nvml=NvmlSystem(error=Refused("BindingNotInstalled")))
    assert ids(Snapshot((node,))) == {"driver.binding-missing"}


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"NCCL_P2P_DISABLE": "0"}, set()),
        ({"NCCL_P2P_DISABLE": "1"}, {"env.p2p-disabled"}),
        ({"NCCL_P2P_LEVEL": "loc"}, {"env.p2p-disabled"}),
        ({"NCCL_P2P_LEVEL": "NVL"}, set()),
        ({"VLLM_BATCH_INVARIANT": "1"}, {"env.batch-invariant"}),
        ({"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}, set()),
        ({"HF_HOME": "/home/u/hf", "HF_HUB_CACHE": "/data"}, set()),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_environment_rules(load: Load, env: dict[str, str], found: set[str]) -> None:
    assert ids(changed(load("hgx-b300"), env=env)) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [(31, "xid.application"), (48, "xid.hardware"), (145, "xid.hardware"), (999, "xid.other")],
)
def test_xids_are_classed(load: Load, code: int, found: str) -> None:
    board = load("hgx-b300")
    host = Host(board.nodes[0].hostname, xids=(Xid("00000000:1B:00.0", code, 7, "python", "text"),))
    assert ids(board, host) == {found}


def test_in_a_container_only_faults_of_its_own_gpus_count(load: Load) -> None:
    board = load("hgx-b300")
    host = Host(board.nodes[0].hostname, xids=(Xid("00000000:1B:00.0", 48), Xid("00000000:99:00.0", 79)))
    assert ids(board, host) == {"xid.hardware", "gpu.off-bus"}
    assert ids(changed(board, virt="container"), host) == {"xid.hardware"}


def test_lost_lanes_dark_handles_and_ports_that_are_down_are_findings(load: Load) -> None:
    board, tray = load("hgx-b300"), load("gb300-nvl72-tray")
    pci = replace(board.nodes[0].gpus[0].pci, width=8)
    assert ids(with_gpu(board, 0, pci=pci)) == {"pcie.narrow"}
    dark = tuple(replace(device, fabric_handle=0) for device in tray.nodes[0].cuda)
    assert ids(changed(tray, cuda=dark)) == {"fabric.no-handles"}
    down = (replace(board.nodes[0].nics[0], state="DOWN"), *board.nodes[0].nics[1:])
    assert ids(changed(board, nics=down)) == {"nic.port-down"}


def test_a_degraded_imex_domain_without_an_explanation_is_still_a_finding(load: Load) -> None:
    node = ImexNode(0, "192.0.2.1", status="READY", links={"1": "RECOVERING"})
    tray = load("gb300-nvl72-tray")
    host = Host(tray.nodes[0].hostname, imex_domain=ImexDomain("DEGRADED", (node,)))
    (finding,) = evaluate(tray, host)
    assert finding.id == "imex.domain-state"
    assert "0→1 RECOVERING" in finding.evidence


def test_confidential_computing_is_a_finding(load: Load) -> None:
    snapshot = load("hgx-h200")
    state = replace(snapshot.nodes[0].nvml.confidential_compute, feature=1)  # type: ignore[type-var]
    nvml = replace(snapshot.nodes[0].nvml, confidential_compute=state)
    assert ids(changed(snapshot, nvml=nvml)) == {"gpu.confidential-compute"}


def test_an_inactive_fabric_manager_is_a_fault_on_a_board_only(load: Load) -> None:
    unit = {"nvidia-fabricmanager": Service("loaded", "inactive")}
    board, tray = load("hgx-h200"), load("gb300-nvl72-tray")
    assert "fabricmanager.inactive" in ids(changed(board, services={**board.nodes[0].services, **unit}))
    assert ids(changed(tray, services={**tray.nodes[0].services, **unit})) == set()


def test_a_stopped_subnet_manager_is_a_fault_on_blackwell_boards(load: Load) -> None:
    for name, expected in (("hgx-b300", {"nvlsm.inactive"}), ("hgx-h200", set())):
        board = load(name)
        services = {**board.nodes[0].services, "nvlsm": Service("loaded", "failed")}
        assert ids(changed(board, services=services)) == expected


def test_links_up_without_peer_access_are_no_proof(load: Load) -> None:
    board = load("hgx-b300")
    dead = tuple(replace(pair, p2p=replace(pair.p2p, nvlink=3)) for pair in board.nodes[0].pairs)
    broken = changed(board, pairs=dead)
    assert "nvlink.no-peer-access" in ids(broken)
    assert verdict(broken).max_tp_in_domain == 0


def test_all_links_down_takes_a_gpu_out_of_the_domain(load: Load) -> None:
    board = with_gpu(load("hgx-b300"), 0, links=tuple(Link(i, 0) for i in range(18)))
    (finding,) = evaluate(board)
    assert (finding.id, finding.severity) == ("nvlink.links-down", Severity.FAIL)
    assert verdict(board).nvlink_domain_gpus == 7


# multicast in three layers


def test_multicast_layers(load: Load) -> None:
    node = load("hgx-b300").nodes[0]
    product = classify(node)
    assert judge(node, product).verdict == "yes"
    assert judge(node, product, {"NCCL_CUMEM_ENABLE": "0"}).verdict == "disabled-by-env"
    assert judge(node, product, {"NCCL_NVLS_ENABLE": "1"}).verdict == "yes"
    assert judge(node, product, {}, "cuMulticastBindMem returned 802").verdict == "no"
    assert judge(replace(node, cuda=()), product).verdict == "unknown"
    dark = replace(node, cuda=tuple(replace(device, multicast=0) for device in node.cuda))
    assert judge(dark, product).verdict == "no"
    assert "multicast.not-supported" in ids(Snapshot((dark,)))


def test_a_forbidden_multicast_is_a_failure_where_the_fast_path_needs_it(load: Load) -> None:
    env = {"NCCL_NVLS_ENABLE": "0"}
    for name, severity in (("hgx-b300", Severity.FAIL), ("hgx-h200", Severity.WARN)):
        assert [f.severity for f in evaluate(changed(load(name), env=env))] == [severity]


def test_who_forbids_multicast_is_named(load: Load) -> None:
    board = load("hgx-b300")
    setting = Setting("NCCL_NVLS_ENABLE", "0", "/etc/profile.d/site.sh:3")
    (finding,) = evaluate(board, Host(board.nodes[0].hostname, settings=(setting,)))
    assert finding.evidence == "NCCL_NVLS_ENABLE=0, set by /etc/profile.d/site.sh:3"


# the probe


def probed(load: Load, *copies: Copy, name: str = "hgx-h200", **values: object) -> set[tuple[str, Severity]]:
    snapshot = load(name)
    host = Host(snapshot.nodes[0].hostname, probe=Probe(copies=copies, **values))  # type: ignore[arg-type]
    return {(f.id, f.severity) for f in evaluate(snapshot, host)}


def test_a_copy_at_the_rate_of_its_links_is_fine(load: Load) -> None:
    assert probed(load, Copy(0, 1, peer=True, gb_s=372.0, correct=True)) == set()


def test_a_slow_copy_warns_and_a_copy_at_pcie_speed_fails(load: Load) -> None:
    assert probed(load, Copy(0, 1, True, 250.0, True)) == {("probe.slow-copy", Severity.WARN)}
    assert probed(load, Copy(0, 1, True, 37.0, True)) == {("probe.slow-copy", Severity.FAIL)}


def test_the_expected_rate_depends_on_the_product(load: Load) -> None:
    assert probed(load, Copy(0, 1, True, 372.0, True), name="hgx-b300") == {
        ("probe.slow-copy", Severity.WARN)
    }
    assert probed(load, Copy(0, 1, True, 50.0, True), name="h200nvl-bridge4") == {
        ("nvlink.no-switch", Severity.WARN)
    }


def test_wrong_bytes_no_peer_access_and_errors_fail(load: Load) -> None:
    assert ("probe.wrong-data", Severity.FAIL) in probed(load, Copy(0, 1, True, 372.0, False))
    assert probed(load, Copy(0, 1, False, 37.0, True)) == {("probe.no-peer-access", Severity.FAIL)}
    assert probed(load, Copy(0, 0, error="cuMemAlloc_v2 returned 2")) == {("probe.failed", Severity.FAIL)}
    assert probed(load, error="no end within 120 s") == {("probe.failed", Severity.FAIL)}


def test_a_failed_multicast_probe_fails_and_decides_the_verdict(load: Load) -> None:
    assert probed(load, multicast="cuMulticastBindMem returned 1") == {
        ("probe.multicast-failed", Severity.FAIL)
    }
    assert probed(load, multicast="ok") == set()


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
        (replace(GOOD, libraries=(Library("nccl", "/x", "2.28.9", "system"),)), set()),
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


TP8 = Requires(gpu=("B300", "GB300"), gpus=8, nvlink_domain=True, multicast=True, driver=">=580")


def test_a_healthy_board_meets_its_profile(load: Load) -> None:
    assert ids(load("hgx-b300"), None, TP8) == set()


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("hgx-b300-7of8", {"profile.gpus", "profile.nvlink-domain", "gpu.missing"}),
        ("hgx-h200", {"profile.gpus"}),
        ("hgx-b300-fm-down", {"profile.nvlink-domain", "profile.multicast"}),
        ("mig-enabled", {"profile.gpus", "profile.nvlink-domain", "mig.enabled"}),
        ("gb300-two-cliques", {"profile.nvlink-domain", "fabric.clique-mismatch"}),
        ("no-driver", {"profile.gpus"}),
        ("gb300-old-driver", {"profile.driver", "driver.too-old-for-cuda13"}),
    ],
)
def test_what_a_profile_lacks_is_a_failure(load: Load, name: str, missing: set[str]) -> None:
    failed = {f.id for f in evaluate(load(name), None, TP8) if f.severity is Severity.FAIL}
    assert missing <= failed


def test_one_tray_of_four_judges_its_own_share_and_says_so(load: Load) -> None:
    tp16 = Requires(gpu=("GB300",), gpus=16, nodes=4, nvlink_domain=True, multicast=True)
    findings = evaluate(load("gb300-nvl72-tray"), None, tp16)
    assert [(f.id, f.severity) for f in findings] == [("profile.nodes", Severity.WARN)]
    assert ids(load("gb300-nvl72-4trays"), None, tp16) == set()


def test_only_the_tensor_parallel_group_has_to_be_in_one_domain(load: Load) -> None:
    board = load("hgx-h200").nodes[0]
    two = Snapshot((board, replace(board, hostname="other")))
    tp8_pp2 = Requires(gpu=("H200",), gpus=16, nodes=2, nvlink_domain=True)
    assert {f.id for f in evaluate(two, None, tp8_pp2, 8)} == set()
    assert {f.id for f in evaluate(two, None, tp8_pp2)} == {"profile.nvlink-domain"}


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
    hosts[one] = Host(one, packages={"torch": "2.13.0"}, libraries=(Library("nccl", "", "2.28.9"),))
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
    assert [f.evidence for f in findings if f.id == "cluster.imex-not-everywhere"] == ["missing on tray01"]
    assert verdict(Snapshot((good, bad))).imex == "missing"
