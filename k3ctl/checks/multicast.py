"""NVLink multicast in three layers: what the hardware can, what the environment allows, what a probe saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3ctl.checks.domains import registered, usable
from k3ctl.checks.products import SWITCHED, Product
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Fabric, Node

YES, NO, UNKNOWN, BY_ENV = "yes", "no", "unknown", "disabled-by-env"
_WORST_FIRST = (NO, BY_ENV, UNKNOWN, YES)

FORBIDDING = {
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""Variable → the value that turns NVLink multicast off for NCCL, torch symmetric memory or NVSHMEM."""


@dataclass(frozen=True)
class Multicast:
    """The verdict and its layers. ``forbidden_by`` are the variables that turn it off."""

    verdict: str
    capability: str
    forbidden_by: tuple[str, ...] = ()
    probe: str = "not run"


def forbidden_by(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables in ``env`` that turn multicast off."""
    return tuple(name for name, value in FORBIDDING.items() if env.get(name, "").strip() == value)


def judge(node: Node, product: Product, env: Mapping[str, str] | None = None, probe: str = "") -> Multicast:
    """Multicast on one host. ``probe`` is ``ok``, an error text, or empty when it was not run."""
    env = node.environment if env is None else env
    off = forbidden_by(env)
    capability = _capability(node, product)
    if capability != NO and off:
        verdict = BY_ENV
    elif capability != YES:
        verdict = capability
    elif probe and probe != "ok":
        verdict = NO
    else:
        verdict = YES
    return Multicast(verdict, capability, off, probe or "not run")


def combined(verdicts: list[str]) -> str:
    """One verdict for several hosts: the worst."""
    return next((word for word in _WORST_FIRST if word in verdicts), NO)


def _capability(node: Node, product: Product) -> str:
    if product.kind is Kind.UNKNOWN:
        return UNKNOWN
    if product.kind not in SWITCHED:
        return NO
    members = usable(node, product)
    read = [gpu for gpu in node.present if isinstance(gpu.fabric, Fabric)]
    if read and not any(registered(gpu) for gpu in members):
        waiting = any(isinstance(g.fabric, Fabric) and g.fabric.state in (1, 2) for g in read)
        return UNKNOWN if waiting else NO
    flags = {device.index: device.multicast for device in node.cuda}
    seen = [flags.get(gpu.index) for gpu in members]
    if 0 in seen:
        return NO
    return YES if seen and None not in seen else UNKNOWN
