"""GPU products, one row each: how they are connected, memory, rates, and whether they have a specialized decode.

A product that is not here is unknown, and so is what depends on it: never guessed from a similar name. To add a GPU,
add its row.

Names are matched word by word: ``GH200`` is not ``H200``, ``B300`` is not ``GB300``, and ``H200 NVL`` is a product of
its own beside ``H200``. Memory is what NVML reports (seen on hosts of H200, B200, B300, GB300 and H100) or, where no
report was found, what the data sheet says. Rates are the data sheets' unless ``basis`` says otherwise; the arithmetic
rate is that of dense BF16. Cards without NVLink have none: no published step says what their links leave of a floor.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

SPECIALIZED_FAMILY = 10
"""Major compute capability for which vLLM 0.33.0 has a specialized decode of Kimi K3."""
RACK_GPUS = 72
MIB = 2**20


class Kind(Enum):
    """How the GPUs of a product are connected."""

    NVL72 = "nvl72"
    """A compute tray of a rack-scale NVLink domain (GB200, GB300): 4 GPUs, no local fabric manager, IMEX."""
    HGX8 = "hgx8"
    """A baseboard of 8 GPUs behind NVSwitch, with a local fabric manager (outside, in a pass-through VM)."""
    BRIDGE = "bridge"
    """PCIe cards joined by NVLink bridges: point to point, no switch, no multicast."""
    PCIE = "pcie"
    """No NVLink."""
    UNIFIED = "unified"
    """One GPU that shares the host's memory (GB10)."""
    NONE = "none"
    """No GPU that NVML can see."""
    UNKNOWN = "unknown"
    """Captures that do not tell."""


@dataclass(frozen=True)
class Rates:
    """What one GPU can move and compute, and on what the figures rest."""

    bytes_per_s: float
    flops_per_s: float
    basis: str = "data sheet"


@dataclass(frozen=True)
class GpuProduct:
    """One product. ``token`` holds the words that identify it in the driver's name, joined by ``-``.

    ``gpus_per_host`` and ``domain_gpus`` (GPUs in one NVLink domain; 1: no NVLink) are those of the usual host.
    ``memory_bytes``, ``nominal_gb`` (as it is sold): 0 where unknown. ``rates`` is None where unknown.
    """

    token: str
    kind: Kind
    capability: tuple[int, int]
    memory_bytes: int
    nominal_gb: int
    rates: Rates | None
    gpus_per_host: int = 8
    domain_gpus: int = 8
    card: bool = False
    """A graphics or PCIe card that may stand beside the GPUs that serve."""
    host: str = ""
    """What the host is called, where it is not derived from chip and kind."""

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """The words of the driver's name by which it is known."""
        return frozenset(self.token.split("-"))

    @property
    def chip(self) -> str:
        """The chip: ``H200`` of ``H200-NVL``; graphics cards are their own."""
        return self.token if self.token.startswith("RTX") else self.token.split("-")[0]

    @property
    def specialized(self) -> bool:
        """vLLM 0.33.0 has a specialized decode for it."""
        return has_specialized(self.capability)


def has_specialized(capability: tuple[int, ...]) -> bool:
    """Whether vLLM 0.33.0 has a specialized decode of Kimi K3 for this compute capability."""
    return capability[0] == SPECIALIZED_FAMILY


_BLACKWELL = Rates(8.0e12, 2500e12)
_HOPPER_SXM = Rates(3.35e12, 989e12)

_ROWS = (
    GpuProduct("GB300", Kind.NVL72, (10, 3), 284_208 * MIB, 288, _BLACKWELL, 4, RACK_GPUS),
    GpuProduct("GB200", Kind.NVL72, (10, 0), 186 * 10**9, 192, _BLACKWELL, 4, RACK_GPUS),
    GpuProduct("B300", Kind.HGX8, (10, 3), 275_040 * MIB, 288, _BLACKWELL),
    GpuProduct("B200", Kind.HGX8, (10, 0), 183_359 * MIB, 192, _BLACKWELL),
    GpuProduct(
        "H200",
        Kind.HGX8,
        (9, 0),
        143_771 * MIB,
        141,
        Rates(4.3e12, 790e12, "copy and matrix product measured on an H200"),
    ),
    GpuProduct("H200-NVL", Kind.BRIDGE, (9, 0), 141 * 10**9, 141, Rates(4.8e12, 835e12), 8, 4),
    GpuProduct("H100", Kind.HGX8, (9, 0), 81_559 * MIB, 80, _HOPPER_SXM),
    GpuProduct("H100-NVL", Kind.BRIDGE, (9, 0), 94 * 10**9, 94, Rates(3.9e12, 835e12), 8, 2),
    GpuProduct("H100-PCIe", Kind.PCIE, (9, 0), 80 * 10**9, 80, None, 8, 1),
    GpuProduct("H800", Kind.HGX8, (9, 0), 80 * 10**9, 80, _HOPPER_SXM),
    GpuProduct("H800-PCIe", Kind.PCIE, (9, 0), 80 * 10**9, 80, None, 8, 1),
    GpuProduct("H20", Kind.HGX8, (9, 0), 96 * 10**9, 96, Rates(4.0e12, 148e12)),
    GpuProduct("H20-3e", Kind.HGX8, (9, 0), 141 * 10**9, 141, Rates(4.8e12, 148e12)),
    GpuProduct("GH200", Kind.PCIE, (9, 0), 0, 0, None, 1, 1),  # sold with 96 and with 144 GB under one name
    GpuProduct("GB10", Kind.UNIFIED, (12, 1), 0, 0, None, 1, 1, host="dgx-spark"),
    GpuProduct("RTX-PRO-6000", Kind.PCIE, (12, 0), 96 * 10**9, 96, None, 8, 1, card=True),
    GpuProduct(
        "RTX-PRO-5000", Kind.PCIE, (12, 0), 0, 0, None, 8, 1, card=True
    ),  # 48 and 72 GB under one name
    GpuProduct("RTX-PRO-4500", Kind.PCIE, (12, 0), 32 * 10**9, 32, None, 8, 1, card=True),
    GpuProduct("RTX-PRO-4000", Kind.PCIE, (12, 0), 24 * 10**9, 24, None, 8, 1, card=True),
    GpuProduct("RTX-PRO-2000", Kind.PCIE, (12, 0), 16 * 10**9, 16, None, 8, 1, card=True),
)

PRODUCTS = {row.token: row for row in _ROWS}


def words(name: str) -> list[str]:
    """Words of a product name: ``NVIDIA B300 SXM6 AC`` → [NVIDIA, B300, SXM6, AC]."""
    return [word for word in re.split(r"[\s\-_/]+", name) if word]


def named(name: str) -> GpuProduct | None:
    """The product that a driver's name means, the most specific row; None for an unknown one."""
    seen = set(words(name))
    rows = [row for row in PRODUCTS.values() if row.words <= seen]
    return max(rows, key=lambda row: len(row.words), default=None)


def token(text: str) -> GpuProduct | None:
    """The product of a token as people type it, in any case: ``gb300``, ``h200-nvl``, ``RTX PRO 6000``."""
    wanted = "-".join(words(text)).lower()
    return next((row for row in PRODUCTS.values() if row.token.lower() == wanted), None)


def common(names: Sequence[str]) -> GpuProduct | None:
    """The one product of several GPUs; None when they differ or one is unknown.

    Cards beside data-centre GPUs do not count: they show pictures.
    """
    rows = [named(name) for name in names]
    serving = [row for row in rows if row is None or not row.card] or rows
    return serving[0] if serving and all(row == serving[0] for row in serving) else None
