"""The short answer about a host or a group: product, domain, multicast, IMEX, tensor-parallel size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from k3ctl.checks import multicast
from k3ctl.checks.domains import Domain, domains
from k3ctl.checks.products import Product, classify
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Node, Snapshot
from k3ctl.host.types import Imex

NOT_NEEDED, OK, MISSING, UNKNOWN = "not-needed", "ok", "missing", "unknown"


@dataclass(frozen=True)
class Verdict:
    """What the machine is and the largest group it can run."""

    gpu_count: int
    product: str
    nvlink_domain_gpus: int
    multicast: str
    imex: str
    max_tp_in_domain: int
    k3_tp: int
    """Largest tensor-parallel size in one domain that divides K3's heads."""
    specialized_tp: int
    """Largest tensor-parallel size in one domain that the specialized decode path accepts; 0: none."""

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self)


def verdict(snapshot: Snapshot) -> Verdict:
    """The short answer for all hosts of ``snapshot`` together."""
    pairs = [(node, classify(node)) for node in snapshot.nodes]
    found = domains(snapshot)
    best: Domain | None = found[0] if found else None
    largest_tp = max((d.largest_tp for d in found), default=0)
    return Verdict(
        gpu_count=sum(len(node.present) for node, _ in pairs),
        product="+".join(dict.fromkeys(product.id for _, product in pairs)) or "none",
        nvlink_domain_gpus=best.size if best else 0,
        multicast=multicast.combined([multicast.judge(node, product).verdict for node, product in pairs]),
        imex=_worst([imex(node, product) for node, product in pairs]),
        max_tp_in_domain=largest_tp,
        k3_tp=max((d.largest_k3_tp for d in found), default=0),
        specialized_tp=max((d.specialized_tp for d in found if d.product.specialized), default=0),
    )


def imex(node: Node, product: Product) -> str:
    """IMEX on one host: only rack trays need it, and only for groups over several trays."""
    if product.kind is not Kind.NVL72:
        return NOT_NEEDED
    if not isinstance(node.imex, Imex):
        return UNKNOWN
    service = node.services.get("nvidia-imex")
    running = (service is not None and service.active == "active") or node.imex.ctl_query == "READY"
    return OK if node.imex.channels and running else MISSING


def _worst(words: list[str]) -> str:
    return next((word for word in (MISSING, UNKNOWN, OK) if word in words), NOT_NEEDED)
