"""Rules: their metadata, product classes, and GPUs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from k3ctl.checks import RULES, Severity, classify, evaluate, verdict
from k3ctl.checks.finding import Applies
from k3ctl.checks.products import chip_of
from k3ctl.checks.rules.gpu import RECOVERY_ACTIONS
from k3ctl.facts.products import Kind
from k3ctl.gpus import Refused, Snapshot
from k3ctl.gpus.types import Fabric, Gpu, GpuProcess, Link, Memory, Node, NvmlSystem
from k3ctl.host.types import (
    Host,
    ImexDomain,
    ImexNode,
    Process,
    Service,
    Xid,
)
from tests.doctor.changing import Load, changed, ids, with_gpu

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
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 7000", ""),
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
        (host_of("NVIDIA A Thing Of 2031"), "unknown", Kind.UNKNOWN),
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
    assert ids(renamed) == {"gpu.unknown-product", "unread.multicast"}
    assert verdict(renamed).multicast == "unknown"


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


def test_nobody_is_told_to_kill_a_run_of_k3ctl(load: Load) -> None:
    held = with_gpu(load("hgx-h200"), 0, processes=(GpuProcess(3117, 104277 * 2**20),))
    own = Process(0, 3117, "VLLM::Worker", 104277 * 2**20, parent=1, run="20261129-a")
    (finding,) = evaluate(held, Host(held.nodes[0].hostname, processes=(own,)))
    assert finding.id == "gpu.memory-held"
    assert "`k3ctl stop 20261129-a`" in finding.evidence
    assert "kill" not in finding.evidence + finding.remedy


def test_memory_held_by_a_process_that_is_not_visible_is_found(load: Load) -> None:
    used = with_gpu(load("hgx-h200"), 0, memory=Memory(150 * 2**30, 50 * 2**30, 100 * 2**30), processes=())
    assert ids(used) == {"gpu.memory-held", "product.odd-memory"}


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
