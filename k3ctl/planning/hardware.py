"""The hardware that a plan is made for: detected, read from a snapshot, or given as ``GB300:16``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from k3ctl.checks.merge import Gathered
from k3ctl.errors import UsageError, unknown
from k3ctl.facts import products
from k3ctl.facts.products import PRODUCTS, GpuProduct, Kind


@dataclass(frozen=True)
class Domain:
    """GPUs that reach each other over NVLink. ``multicast`` is yes, no, disabled-by-env or unknown."""

    name: str
    hosts: tuple[str, ...]
    gpus: int
    multicast: str = "unknown"
    largest_tp: int = 0
    """Most GPUs of it that may form one tensor-parallel group; a board with a dead GPU offers 4 of its 7."""

    def __post_init__(self) -> None:
        if not self.largest_tp:
            object.__setattr__(self, "largest_tp", self.gpus)

    def __str__(self) -> str:
        return f"{self.gpus} GPUs on {', '.join(self.hosts)}"


@dataclass(frozen=True)
class Hardware:
    """What a deployment may use."""

    source: str
    product: str
    """Product token such as ``GB300``; empty where there is no usable GPU."""
    hosts: tuple[str, ...]
    gpus: int
    """Usable GPUs over all hosts."""
    gpu_bytes: int = 0
    capability: tuple[int, int] | None = None
    nominal_gb: int = 0
    domains: tuple[Domain, ...] = ()
    driver: str = ""
    environment: Mapping[str, str] | None = None
    """Variables that the hosts already have set."""
    notes: tuple[str, ...] = ()
    machines: Gathered | None = field(default=None, repr=False, compare=False)
    """The readings that it was made of; None where it was described."""

    @property
    def chip(self) -> str:
        """The chip of the product: ``H200`` of ``H200-NVL``; the product itself where it has no row."""
        row = PRODUCTS.get(self.product)
        return row.chip if row else self.product

    def accepted(self, tokens: tuple[str, ...]) -> bool:
        """Whether a profile that names ``tokens`` means it: ``H200`` is the GPU of a board, not a card of that chip."""
        row = PRODUCTS.get(self.product)
        board = row is None or row.kind in (Kind.HGX8, Kind.NVL72)
        return self.product in tokens or (board and self.chip in tokens)

    @property
    def largest_domain(self) -> Domain | None:
        """The NVLink domain that takes the largest tensor-parallel group."""
        return max(self.domains, key=lambda domain: domain.largest_tp, default=None)

    @property
    def largest_tp(self) -> int:
        """The largest tensor-parallel group within one NVLink domain; 0 where there is none."""
        return self.largest_domain.largest_tp if self.largest_domain else 0

    def domain_list(self) -> str:
        """The domains in words."""
        return "; ".join(f"{d.name}: {d}" for d in self.domains) or "none"

    def describe(self) -> str:
        """One line: what it is and how it hangs together."""
        if not self.gpus:
            return "no usable GPU"
        hosts = f" on {len(self.hosts)} hosts" if len(self.hosts) > 1 else ""
        memory = f", {self.gpu_bytes / 2**30:.1f} GiB each" if self.gpu_bytes else ""
        text = f"{self.gpus}× {self.product or 'unknown GPU'}{hosts}{memory}"
        if len(self.domains) > 1:
            return f"{text}, {len(self.domains)} NVLink domains ({self.domain_list()})"
        domain = self.largest_domain
        if domain is None:
            return f"{text}, no NVLink domain" if self.gpus > 1 else text
        return f"{text}, one NVLink domain of {domain.gpus}" if domain.gpus > 1 else text

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "source": self.source,
            "product": self.product,
            "gpus": self.gpus,
            "hosts": list(self.hosts),
            "gpu_bytes": self.gpu_bytes,
            "driver": self.driver,
            "domains": [
                {"name": d.name, "hosts": list(d.hosts), "gpus": d.gpus, "largest_tp": d.largest_tp}
                | {"multicast": d.multicast}
                for d in self.domains
            ],
            "notes": list(self.notes),
        }


def described(spec: str) -> Hardware:
    """Hardware from ``PRODUCT:COUNT`` (``GB300:16``, ``h200-nvl:4``): healthy hosts of the usual size.

    NVL72 products form one NVLink domain over the trays of a rack, boards one per host, bridged cards one per bridge.
    """
    found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9 -]*):(\d+)", spec.strip())
    if not found:
        raise UsageError(
            f"`{spec}` describes no hardware",
            hint="use PRODUCT:COUNT such as `GB300:16`, or a snapshot file of doctor",
        )
    token, count = found.group(1).upper(), int(found.group(2))
    product = products.token(token)
    if product is None:
        raise unknown("GPU product", token, PRODUCTS)
    if count < 1:
        raise UsageError(f"`{spec}`: at least one GPU is needed")
    return _healthy(product, count, source=f"given as {spec}")


def _healthy(product: GpuProduct, count: int, source: str) -> Hardware:
    sizes = _parts(count, product.gpus_per_host)
    hosts = tuple(f"host{i}" for i in range(len(sizes)))
    return Hardware(
        source=source,
        product=product.token,
        hosts=hosts,
        gpus=count,
        gpu_bytes=product.memory_bytes,
        capability=product.capability,
        nominal_gb=product.nominal_gb,
        domains=_healthy_domains(product, hosts, sizes),
    )


def _healthy_domains(product: GpuProduct, hosts: tuple[str, ...], sizes: list[int]) -> tuple[Domain, ...]:
    """The NVLink domains of healthy hosts: none without NVLink; only switches offer multicast."""
    if product.domain_gpus == 1:
        return ()
    if product.domain_gpus > product.gpus_per_host:
        racks = _parts(sum(sizes), product.domain_gpus)
        trays = product.domain_gpus // product.gpus_per_host
        return tuple(
            Domain("rack" if len(racks) == 1 else f"rack{i}", hosts[i * trays : (i + 1) * trays], size, "yes")
            for i, size in enumerate(racks)
        )
    multicast = "yes" if product.kind is Kind.HGX8 else "no"
    return tuple(
        Domain(
            host if product.domain_gpus == product.gpus_per_host else f"{host}/{i}", (host,), part, multicast
        )
        for host, size in zip(hosts, sizes, strict=True)
        for i, part in enumerate(_parts(size, product.domain_gpus))
    )


def _parts(count: int, largest: int) -> list[int]:
    return [min(largest, count - start) for start in range(0, count, largest)]


def none(source: str = "this machine") -> Hardware:
    """No GPU at all."""
    return Hardware(source=source, product="", hosts=(), gpus=0)
