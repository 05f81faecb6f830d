"""One row per GPU: everything that depends on the product follows from it, and an unknown product stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3ctl.checks import classify
from k3ctl.facts import products
from k3ctl.facts.products import PRODUCTS, GpuProduct, Kind, Rates
from k3ctl.gpus.types import Fabric, Gpu, Node, NvmlSystem, Snapshot
from k3ctl.planning import detect
from k3ctl.planning.estimate import estimate
from k3ctl.planning.hardware import described
from k3ctl.planning.rules import ALL, evaluate
from tests.planning.building import deployment


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H800", "H800"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H20-3e", "H20-3e"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 4500 Blackwell", "RTX-PRO-4500"),
    ],
)
def test_a_drivers_name_means_one_row(name: str, token: str) -> None:
    row = products.named(name)
    assert row is not None and row.token == token


@pytest.mark.parametrize(
    "name", ["NVIDIA H2000", "NVIDIA B30", "NVIDIA H2O", "NVIDIA R100", "NVIDIA RTX 6000 Ada", ""]
)
def test_an_unknown_name_stays_unknown(name: str) -> None:
    assert products.named(name) is None
    assert products.common([name] * 8) is None


def test_only_the_sm100_family_has_a_specialized_decode() -> None:
    assert {row.chip for row in PRODUCTS.values() if row.specialized} == {"B200", "B300", "GB200", "GB300"}


def test_tokens_are_understood_in_any_case() -> None:
    for row in PRODUCTS.values():
        assert products.token(row.token.lower()) == row
        assert products.token(row.token.replace("-", " ")) == row


def test_what_is_read_from_a_driver_beats_the_table() -> None:
    assert products.common(["NVIDIA GB300", "NVIDIA RTX PRO 2000"]) == PRODUCTS["GB300"]
    assert products.common(["NVIDIA GB300", "NVIDIA Z900"]) is None
    assert products.common(["NVIDIA H200", "NVIDIA H200 NVL"]) is None
    assert products.common([]) is None
    assert products.common(["NVIDIA RTX PRO 6000"] * 2) == PRODUCTS["RTX-PRO-6000"]


def _board(name: str) -> Snapshot:
    registered = Fabric(version=3, state=3, status=0)
    gpus = tuple(Gpu(i, name=name, fabric=registered) for i in range(8))
    return Snapshot((Node("n", nvml=NvmlSystem(driver="590.1"), gpus=gpus),))


def test_a_new_gpu_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert classify(_board("NVIDIA Z900").nodes[0]).chip == ""
    row = GpuProduct("Z900", Kind.HGX8, (10, 9), 400 * 10**9, 400, Rates(12e12, 4000e12))
    monkeypatch.setitem(PRODUCTS, row.token, row)

    host = classify(_board("NVIDIA Z900").nodes[0])
    assert (host.id, host.kind, host.expected_gpus, host.specialized) == ("hgx-z900", Kind.HGX8, 8, True)
    assert products.common(["NVIDIA Z900"] * 8) == row

    seen, typed = detect.from_snapshots([_board("NVIDIA Z900")], "test"), described("z900:8")
    for hardware in (seen, typed):
        assert (hardware.product, hardware.gpu_bytes, hardware.capability) == ("Z900", 400 * 10**9, (10, 9))
        assert hardware.largest_tp == 8
    planned = deployment("b300-tp8", hardware="z900:8")
    assert "specialized.gpu" not in {finding.rule.id for finding in evaluate(ALL, planned)}
    found = estimate(planned, concurrency=1, context=9000, specialized=True)
    assert found is not None and "12.0 TB/s" in found.basis and "nothing is published for Z900" in found.basis

    monkeypatch.setitem(PRODUCTS, row.token, replace(row, capability=(9, 9), rates=None))
    planned = deployment("b300-tp8", hardware="z900:8")
    assert "specialized.gpu" in {finding.rule.id for finding in evaluate(ALL, planned)}
    assert estimate(planned, concurrency=1, context=9000, specialized=True) is None


def test_an_unknown_gpu_gives_no_figure_that_looks_like_a_fact() -> None:
    hardware = detect.from_snapshots([_board("NVIDIA Z900")], "test")
    assert (hardware.product, hardware.gpu_bytes, hardware.capability, hardware.nominal_gb) == (
        "",
        0,
        None,
        0,
    )
    assert "unknown GPU" in hardware.describe()


@pytest.mark.parametrize(
    ("spec", "domains"),
    [
        ("GB300:16", [16]),
        ("GB300:80", [72, 8]),
        ("H20:16", [8, 8]),
        ("H200-NVL:8", [4, 4]),
        ("RTX-PRO-6000:8", []),
    ],
)
def test_described_hardware_has_the_nvlink_domains_of_its_product(spec: str, domains: list[int]) -> None:
    hardware = described(spec)
    assert [domain.gpus for domain in hardware.domains] == domains
    assert sum(domains) in (0, hardware.gpus)
    assert all(
        len(domain.hosts) == -(-domain.gpus // 4) for domain in hardware.domains if "rack" in domain.name
    )


def test_bridged_cards_are_not_promised_multicast() -> None:
    assert {domain.multicast for domain in described("H200-NVL:4").domains} == {"no"}
