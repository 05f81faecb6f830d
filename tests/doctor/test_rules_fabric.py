"""Rules about the fabric and multicast, and what the probe adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3ctl.checks import Severity, classify, domains, evaluate, verdict
from k3ctl.checks.domains import HealthMask
from k3ctl.checks.multicast import judge
from k3ctl.gpus import Snapshot
from k3ctl.host.types import (
    Copy,
    Host,
    Probe,
    Setting,
)
from tests.doctor.changing import Load, changed, ids, with_gpu

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
