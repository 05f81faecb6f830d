"""What a rule may look at: one host with its derived facts, or all hosts of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k3ctl.checks.domains import Domain
from k3ctl.checks.multicast import Multicast
from k3ctl.checks.products import Product
from k3ctl.gpus.types import Node
from k3ctl.host.types import Host, ImexDomain, Setting

if TYPE_CHECKING:
    from k3ctl.profiles.schema import Requires


@dataclass(frozen=True)
class NodeView:
    """One host. ``host`` is None when only a GPU snapshot is known."""

    node: Node
    product: Product
    multicast: Multicast
    host: Host | None = None

    @property
    def imex_domain(self) -> ImexDomain | None:
        """The table of IMEX nodes that this host printed."""
        return self.host.imex_domain if self.host else None

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Environment variables by name, with their origin where it is known."""
        out = {name: Setting(name, value) for name, value in self.node.environment.items()}
        if self.host:
            out |= {setting.name: setting for setting in self.host.settings}
        return out

    def setting(self, name: str) -> str:
        """A variable's value, empty when it is not set."""
        found = self.settings.get(name)
        return found.value.strip() if found else ""


@dataclass(frozen=True)
class ClusterView:
    """All hosts of a group, and what a profile requires of them (None: nothing was asked).

    ``tensor_parallel`` is the profile's group size, which has to fit into one NVLink domain; 0 means all its GPUs.
    """

    views: Sequence[NodeView]
    domains: Sequence[Domain]
    requires: Requires | None = None
    tensor_parallel: int = 0


def size_text(size: int) -> str:
    """A size for people: ``64 MiB``, ``101.8 GiB``."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}".replace(".0 ", " ")
    return f"{size} B"


def nccl_version(view: NodeView) -> str | None:
    """Version of the NCCL that would be loaded (the first that is found), where it is known."""
    libraries = view.host.libraries if view.host else ()
    return next((library.version for library in libraries if library.name == "nccl"), None)
