"""The short answer about a host or a group: product, domain, multicast, IMEX, tensor-parallel size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from k3ctl.checks import multicast
from k3ctl.checks.domains import domains, known_domain
from k3ctl.checks.products import Product, classify
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Node, Snapshot
from k3ctl.host import imex_domain
from k3ctl.host.types import Host, Imex, ImexDomain

NOT_NEEDED, OK, MISSING, UNKNOWN = "not-needed", "ok", "missing", "unknown"


@dataclass(frozen=True)
class MachineVerdict:
    """What the machine is and the largest group it can run."""

    gpu_count: int
    product: str
    nvlink_domain_gpus: int | None
    """Size of the largest NVLink domain; None: what was read does not tell, as for the three sizes below."""
    multicast: str
    imex: str
    max_tp_in_domain: int | None
    k3_tp: int | None
    """Largest tensor-parallel size in one domain that divides K3's heads."""
    specialized_tp: int | None
    """Largest tensor-parallel size in one domain that the specialized decode path accepts; 0: none."""

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self)


def verdict(snapshot: Snapshot, hosts: Mapping[str, Host] | None = None) -> MachineVerdict:
    """The short answer for all hosts of ``snapshot`` together."""
    tables = {name: host.imex_domain for name, host in (hosts or {}).items()}
    pairs = [(node, classify(node)) for node in snapshot.nodes]
    found = domains(snapshot)
    told = bool(found) or all(known_domain(node, product) for node, product in pairs)

    def largest(sizes: Iterable[int]) -> int | None:
        return max(sizes, default=0) if told else None

    return MachineVerdict(
        gpu_count=sum(len(node.present) for node, _ in pairs),
        product="+".join(dict.fromkeys(product.id for _, product in pairs)) or "none",
        nvlink_domain_gpus=largest(d.size for d in found),
        multicast=multicast.combined([multicast.judge(node, product).verdict for node, product in pairs]),
        imex=_imex([(node, product, tables.get(node.hostname)) for node, product in pairs]),
        max_tp_in_domain=largest(d.largest_tp for d in found),
        k3_tp=largest(d.largest_k3_tp for d in found),
        specialized_tp=largest(d.specialized_tp for d in found if d.product.specialized),
    )


def imex(node: Node, product: Product, domain: ImexDomain | None = None) -> str:
    """IMEX on one host: only rack trays need it, and only for groups over several trays.

    What IMEX itself answers goes before what systemd says of its service, and a domain that is not up before both.
    """
    if product.kind is not Kind.NVL72:
        return NOT_NEEDED
    told = node.imex if isinstance(node.imex, Imex) else Imex()
    service = node.services.get("nvidia-imex")
    up = domain is not None and domain.status == imex_domain.UP
    if told.ctl_query is not None:
        running: bool | None = told.ctl_query in imex_domain.READY_ANSWERS
    elif domain is not None:
        running = up
    else:
        running = None if service is None else service.active == "active"
    if running is False or told.channels == () or (domain is not None and not up):
        return MISSING
    return OK if running and told.channels else UNKNOWN


def _imex(trays: list[tuple[Node, Product, ImexDomain | None]]) -> str:
    words = [imex(node, product, domain) for node, product, domain in trays]
    listed = [
        (node.hostname, domain) for node, product, domain in trays if product.kind is Kind.NVL72 and domain
    ]
    apart = len(set(imex_domain.membership(listed).values())) > 1
    return MISSING if apart else _worst(words)


def _worst(words: list[str]) -> str:
    return next((word for word in (MISSING, UNKNOWN, OK) if word in words), NOT_NEEDED)
