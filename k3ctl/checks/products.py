"""Product classes: one fabric reading means different things on an NVL72 tray, an HGX board and a bridge.

Names are looked up in ``facts.products``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from k3ctl.facts import products
from k3ctl.facts.products import GpuProduct, Kind
from k3ctl.gpus.nvml import is_zero
from k3ctl.gpus.types import Fabric, Gpu, Node
from k3ctl.host.values import Refused, known, unread

ALL_KINDS = frozenset(Kind)
SWITCHED = frozenset({Kind.NVL72, Kind.HGX8})
GPU_KINDS = ALL_KINDS - {Kind.NONE}

TO_GPU, TO_SWITCH = 0, 2
"""nvmlIntNvLinkDeviceType_t of an NVLink's other end."""
BOARD_GPUS = 8
TRAY_GPUS = 4
BRIDGE_GPUS = (2, 4)
PARTIAL_COUNTS = (1, 2, 4)
"""GPU counts of the partitions that a fabric manager passes to a VM."""


@dataclass(frozen=True)
class Product:
    """A product class. ``chip`` is the name token, ``expected_gpus`` per host (None: any number)."""

    id: str
    kind: Kind
    chip: str = ""
    expected_gpus: int | None = None
    token: str = ""
    """The word by which a profile asks for it, where that is not the chip's."""

    @property
    def specialized(self) -> bool:
        """vLLM's specialized decode path exists for this chip."""
        row = products.token(self.chip)
        return row is not None and row.specialized

    def accepted(self, tokens: tuple[str, ...]) -> bool:
        """Whether a profile that names ``tokens`` means this product: ``H200`` is the board's GPU, not the card."""
        names = {self.token} if self.token else {self.chip}
        return bool(names & set(tokens))


NO_GPU = Product("none", Kind.NONE)


def chip_of(name: str) -> str:
    """The chip in a product name, empty when none is known."""
    row = products.named(name)
    return row.chip if row else ""


def classify(node: Node) -> Product:
    """The product class of a host: by name, and by fabric, links and count where names are missing."""
    if not node.gpus:
        return (
            Product("unknown", Kind.UNKNOWN) if node.nvml.error is None and not node.nvml.driver else NO_GPU
        )
    gpus = node.present
    names = Counter(name for gpu in gpus if (name := known(gpu.name, "")))
    if not names:
        return _by_shape(node)
    # accelerators beside the data-centre chip (a display card in a workstation) do not decide the class
    name = max(names, key=lambda n: (_serves(products.named(n)), names[n]))
    return _by_name(name, node)


def _serves(row: GpuProduct | None) -> bool:
    return row is not None and not row.card


def _by_name(name: str, node: Node) -> Product:
    row = products.named(name)
    chip = row.chip if row else ""
    same = [gpu for gpu in node.present if known(gpu.name, "") == name]
    if row and row.kind is Kind.UNIFIED:
        return Product(row.host, Kind.UNIFIED, chip)
    ends = {known(link.remote_type, -1) for gpu in same for link in gpu.links}
    mesh = TO_GPU in ends and TO_SWITCH not in ends  # what was read goes before what the name suggests
    if row and row.kind in SWITCHED:
        if mesh:
            return Product(f"{chip.lower()}-mesh", Kind.BRIDGE, chip, token=f"{chip}-mesh")
        return _rack(chip, same) if row.kind is Kind.NVL72 else _board(chip, node)
    return _card(row, node, same, ends)


def _card(row: GpuProduct | None, node: Node, gpus: list[Gpu], ends: set[int]) -> Product:
    """A card: joined by bridges or not at all, which its links or the matrix tell, or its product's row."""
    chip, token = (row.chip, row.token) if row else ("", "")
    bridged = token.lower() if row and row.kind is Kind.BRIDGE else ""
    matrix = [known(pair.p2p.nvlink, -1) for pair in node.pairs]
    if TO_SWITCH in ends:
        return Product("unknown", Kind.UNKNOWN, chip)  # a newer board: better no verdict than a wrong one
    if TO_GPU in ends or 0 in matrix:
        return Product(bridged or "bridge", Kind.BRIDGE, chip, token=token)
    bare = all(not unread(gpu.links) and not gpu.links for gpu in gpus)
    told = bool(matrix) and all(status > 0 for status in matrix)
    if bare or told or (row and row.kind is Kind.PCIE):
        return Product(bridged or "pcie", Kind.PCIE, chip, token=token)
    return Product(bridged or "unknown", Kind.UNKNOWN, chip, token=token)


def _rack(chip: str, gpus: list[Gpu]) -> Product:
    """One GB300 without NVLink or fabric is a workstation, not a tray: the name alone does not mean NVL72."""
    read = [gpu.fabric for gpu in gpus if isinstance(gpu.fabric, Fabric)]
    outside = bool(read) and not any(f.state in (1, 2, 3) for f in read) and not any(g.links for g in gpus)
    if len(gpus) == 1 and outside:
        return Product(f"{chip.lower()}-station", Kind.PCIE, chip, 1, f"{chip}-station")
    return Product(f"{chip.lower()}-nvl72", Kind.NVL72, chip, TRAY_GPUS)


def _board(chip: str, node: Node) -> Product:
    count = len(node.gpus)
    if node.virt != "none" and count in PARTIAL_COUNTS:
        return Product(f"{chip.lower()}-sxm-partial", Kind.HGX8, chip, count)
    return Product(f"hgx-{chip.lower()}", Kind.HGX8, chip, BOARD_GPUS)


def _by_shape(node: Node) -> Product:
    """Captures without product names: the count, the fabric and the NVLink matrix tell what they can."""
    gpus = node.present
    fabrics = [gpu.fabric for gpu in gpus if isinstance(gpu.fabric, Fabric)]
    if any(not is_zero(f.cluster_uuid) for f in fabrics) and len(gpus) <= TRAY_GPUS:
        return Product("nvl72", Kind.NVL72, expected_gpus=TRAY_GPUS)
    if fabrics and len(gpus) <= TRAY_GPUS and _segmented(gpus):
        return Product("nvl72", Kind.NVL72, expected_gpus=TRAY_GPUS)
    if fabrics and len(gpus) > TRAY_GPUS:
        return Product("hgx8", Kind.HGX8, expected_gpus=BOARD_GPUS)
    if not fabrics and gpus and all(_refused(gpu.fabric) for gpu in gpus):
        return Product("pcie", Kind.PCIE)
    return _by_matrix(node)


def _by_matrix(node: Node) -> Product:
    nvlink = [known(pair.p2p.nvlink, -1) for pair in node.pairs]
    if nvlink and all(status > 0 for status in nvlink) and any(known(p.ancestor, 0) for p in node.pairs):
        return Product("pcie", Kind.PCIE)
    if _bridged(node):
        return Product("bridge", Kind.BRIDGE)
    if len(node.gpus) == TRAY_GPUS and all(isinstance(g.gpu_numa_node, int) for g in node.present):
        return Product("nvl72", Kind.NVL72, expected_gpus=TRAY_GPUS)
    return Product("unknown", Kind.UNKNOWN)


def _bridged(node: Node) -> bool:
    """Two or more islands of two or four GPUs, and nothing else: one GPU apart is a fault, not a product."""
    joined = {gpu.index: {gpu.index} for gpu in node.present}
    for pair in node.pairs:
        if pair.p2p.nvlink == 0 and pair.a in joined and pair.b in joined:
            group = joined[pair.a] | joined[pair.b]
            joined |= dict.fromkeys(group, group)
    islands = {frozenset(group) for group in joined.values()}
    return len(islands) > 1 and all(len(group) in BRIDGE_GPUS for group in islands)


def _refused(value: object) -> bool:
    """Asked and refused, as against never asked."""
    return isinstance(value, Refused) and value.code >= 0


def _segmented(gpus: tuple[Gpu, ...]) -> bool:
    """Grace gives every GPU a PCI domain of its own, none of them 0."""
    domains = [known(gpu.pci.bus_id, "").split(":")[0].lstrip("0") for gpu in gpus]
    return all(domains) and len(set(domains)) == len(gpus)
