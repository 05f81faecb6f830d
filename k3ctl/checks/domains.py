"""NVLink domains: which GPUs one tensor-parallel group may span.

On an NVL72 tray a domain is (cluster UUID, clique id) and reaches over hosts. On every other product the UUID
says nothing about other hosts, zero or not: the domain is this board, or the island that a bridge joins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from k3ctl.checks.products import Product, classify
from k3ctl.facts.k3 import K3, SPECIALIZED_TP
from k3ctl.facts.products import Kind
from k3ctl.gpus.nvml import is_zero
from k3ctl.gpus.types import Fabric, Gpu, Node, Snapshot
from k3ctl.host.values import known, unread

COMPLETED = 3

Member = tuple[str, int]
"""(host name, GPU index)."""


@dataclass(frozen=True)
class Domain:
    """GPUs that reach each other over NVLink. ``cluster_uuid`` is empty when the domain ends at this host."""

    product: Product
    members: tuple[Member, ...]
    cluster_uuid: str = ""
    clique_id: int = 0

    @property
    def name(self) -> str:
        """``uuid:clique`` for a rack domain, the host name otherwise."""
        return f"{self.cluster_uuid}:{self.clique_id}" if self.cluster_uuid else self.members[0][0]

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.members)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names, in order of appearance."""
        return tuple(dict.fromkeys(host for host, _ in self.members))

    @property
    def largest_tp(self) -> int:
        """The largest group of GPUs that may form one tensor-parallel group.

        A baseboard or a bridge is divided into 1, 2, 4 or 8 GPUs; a rack domain takes any number of them.
        """
        return self.size if self.product.kind is Kind.NVL72 else _power_of_two(self.size)

    @property
    def largest_k3_tp(self) -> int:
        """The largest tensor-parallel size in here that divides K3's 96 heads."""
        return max((n for n in range(1, self.largest_tp + 1) if K3.heads % n == 0), default=0)

    @property
    def specialized_tp(self) -> int:
        """The largest tensor-parallel size in here that the specialized decode path takes; 0 when none."""
        return max((tp for tp in SPECIALIZED_TP if tp <= self.largest_tp), default=0)


def domains(snapshots: Snapshot | Iterable[Snapshot]) -> list[Domain]:
    """The domains of all hosts, the largest first."""
    shots = [snapshots] if isinstance(snapshots, Snapshot) else list(snapshots)
    nodes = [node for shot in shots for node in shot.nodes]
    rack: dict[tuple[str, int], list[Member]] = defaultdict(list)
    rack_product: dict[tuple[str, int], Product] = {}
    found: list[Domain] = []
    for node in nodes:
        product = classify(node)
        if product.kind is not Kind.NVL72:
            found += [Domain(product, members) for members in islands(node, product)]
            continue
        for gpu in usable(node, product):
            if isinstance(gpu.fabric, Fabric):
                key = (gpu.fabric.cluster_uuid, gpu.fabric.clique_id)
                rack[key].append((node.hostname, gpu.index))
                rack_product.setdefault(key, product)
    found += [Domain(rack_product[key], tuple(members), *key) for key, members in rack.items()]
    return sorted(found, key=lambda d: -d.size)


def usable(node: Node, product: Product) -> list[Gpu]:
    """The GPUs that can take part in a domain: present, whole, registered with the fabric, healthy.

    On a board whose source holds no fabric at all, the matrix decides (``islands``); a single GPU whose fabric is
    missing among others is not counted.
    """
    gpus = [gpu for gpu in node.present if not gpu.in_mig_mode and (gpu.links_up or not gpu.links)]
    if product.kind is Kind.NVL72:
        return [gpu for gpu in gpus if registered(gpu) and not _zero(gpu) and not unhealthy(gpu)]
    if product.kind is Kind.HGX8:
        if not any(isinstance(gpu.fabric, Fabric) for gpu in node.present):
            return gpus
        return [gpu for gpu in gpus if registered(gpu) and not unhealthy(gpu)]
    return gpus


def registered(gpu: Gpu) -> bool:
    """Registration with the fabric is completed, with status success."""
    return isinstance(gpu.fabric, Fabric) and gpu.fabric.state == COMPLETED and gpu.fabric.status == 0


def unhealthy(gpu: Gpu) -> bool:
    """The fabric must not be used through this GPU: unhealthy summary or route, or a wrong configuration."""
    fabric = gpu.fabric
    if not isinstance(fabric, Fabric):
        return False
    health = HealthMask.of(fabric)
    return fabric.health_summary == 2 or health.route_unhealthy or health.incorrect_configuration > 1


@dataclass(frozen=True)
class HealthMask:
    """``nvmlGpuFabricInfo.healthMask``: two bits each (0 n/a, 1 true, 2 false), four for the configuration.

    0xAA is "false" four times, not a fault.
    """

    mask: int

    @classmethod
    def of(cls, fabric: Fabric) -> HealthMask:
        """The mask of ``fabric``; one that was not read says nothing (0)."""
        return cls(known(fabric.health_mask, 0))

    def _is_true(self, shift: int) -> bool:
        return self.mask >> shift & 0b11 == 1

    @property
    def degraded_bandwidth(self) -> bool:
        """NVLinks are down or slow."""
        return self._is_true(0)

    @property
    def route_recovery(self) -> bool:
        """Routes are being rebuilt."""
        return self._is_true(2)

    @property
    def route_unhealthy(self) -> bool:
        """Routes are unusable."""
        return self._is_true(4)

    @property
    def access_timeout_recovery(self) -> bool:
        """Recovery from access timeouts is in progress."""
        return self._is_true(6)

    @property
    def partition_unassigned(self) -> bool:
        """The GPU belongs to no NVLink partition."""
        return self.mask >> 12 & 0b11 == 2

    @property
    def manager_disconnected(self) -> bool:
        """The global fabric manager does not reach the GPU."""
        return self.mask >> 14 & 0b11 == 2

    @property
    def incorrect_configuration(self) -> int:
        """0 n/a, 1 none, above: what is wrong."""
        return self.mask >> 8 & 0xF


def islands(node: Node, product: Product) -> list[tuple[Member, ...]]:
    """GPUs of one host that reach each other over NVLink, by the peer-to-peer table where it was read."""
    if product.kind not in (Kind.HGX8, Kind.BRIDGE, Kind.UNKNOWN):
        return []
    gpus = usable(node, product)
    status = {frozenset((p.a, p.b)): known(p.p2p.nvlink, -1) for p in node.pairs}

    def joined(a: Gpu, b: Gpu) -> bool:
        value = status.get(frozenset((a.index, b.index)), -1)
        # a switch joins the GPUs that are registered with it, also where the table does not mention them
        return value == 0 or (value < 0 and registered(a) and registered(b))

    groups: list[list[Gpu]] = []
    for gpu in gpus:
        touching = [group for group in groups if any(joined(gpu, other) for other in group)]
        merged = [gpu, *(other for group in touching for other in group)]
        groups = [group for group in groups if group not in touching] + [merged]
    ordered = [tuple((node.hostname, i) for i in sorted(g.index for g in group)) for group in groups]
    return [group for group in ordered if len(group) > 1 or _one_gpu_board(group, gpus, product)]


def _one_gpu_board(group: Sequence[Member], gpus: Sequence[Gpu], product: Product) -> bool:
    return product.kind is Kind.HGX8 and len(group) == len(gpus) == 1 and registered(gpus[0])


def known_domain(node: Node, product: Product) -> bool:
    """Whether enough was read to say which GPUs share a domain: the fabric, or the matrix of pairs."""
    if product.kind in (Kind.NONE, Kind.PCIE, Kind.UNIFIED):
        return bool(node.gpus) or node.nvml.error is not None
    if product.kind is not Kind.NVL72 and any(not unread(pair.p2p.nvlink) for pair in node.pairs):
        return True
    return bool(node.gpus) and any(not unread(gpu.fabric) for gpu in node.present)


def _zero(gpu: Gpu) -> bool:
    return isinstance(gpu.fabric, Fabric) and is_zero(gpu.fabric.cluster_uuid)


def _power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n else 0
