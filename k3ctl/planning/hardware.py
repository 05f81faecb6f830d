"""The hardware that a plan is made for: detected, read from a snapshot, or given as ``GB300:16``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.errors import UsageError, unknown


@dataclass(frozen=True)
class Product:
    """A GPU product: ``memory_bytes`` as NVML reports it, ``nominal_gb`` as it is sold."""

    token: str
    capability: tuple[int, int]
    memory_bytes: int
    nominal_gb: int
    gpus_per_host: int
    rack_domain: bool
    """The NVLink domain reaches over hosts (NVL72 trays)."""


PRODUCTS = {
    product.token: product
    for product in (
        Product("GB300", (10, 3), 298_013_687_808, 288, 4, True),
        Product("GB200", (10, 0), 192_000_000_000, 192, 4, True),
        Product("B300", (10, 3), 288_400_343_040, 288, 8, False),
        Product("B200", (10, 0), 192_000_000_000, 192, 8, False),
        Product("H200", (9, 0), 150_754_820_096, 141, 8, False),
        Product("H100", (9, 0), 85_520_809_984, 80, 8, False),
    )
}


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
    """Hardware from ``PRODUCT:COUNT`` (``GB300:16``, ``B300:8``): healthy hosts of the usual size.

    NVL72 products form one NVLink domain over all trays, others one per host.
    """
    found = re.fullmatch(r"([A-Za-z0-9]+):(\d+)", spec.strip())
    if not found:
        raise UsageError(
            f"`{spec}` describes no hardware",
            hint="use PRODUCT:COUNT such as `GB300:16`, or a snapshot file of doctor",
        )
    token, count = found.group(1).upper(), int(found.group(2))
    if token not in PRODUCTS:
        raise unknown("GPU product", token, PRODUCTS)
    if count < 1:
        raise UsageError(f"`{spec}`: at least one GPU is needed")
    return _healthy(PRODUCTS[token], count, source=f"given as {spec}")


def _healthy(product: Product, count: int, source: str) -> Hardware:
    per_host = product.gpus_per_host
    sizes = [min(per_host, count - start) for start in range(0, count, per_host)]
    hosts = tuple(f"host{i}" for i in range(len(sizes)))
    if product.rack_domain:
        domains: tuple[Domain, ...] = (Domain("rack", hosts, count, "yes"),)
    else:
        domains = tuple(Domain(host, (host,), size, "yes") for host, size in zip(hosts, sizes, strict=True))
    return Hardware(
        source=source,
        product=product.token,
        hosts=hosts,
        gpus=count,
        gpu_bytes=product.memory_bytes,
        capability=product.capability,
        nominal_gb=product.nominal_gb,
        domains=domains,
    )


def none(source: str = "this machine") -> Hardware:
    """No GPU at all."""
    return Hardware(source=source, product="", hosts=(), gpus=0)
