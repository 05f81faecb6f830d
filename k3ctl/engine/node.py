"""One node of a launch over several."""

from __future__ import annotations

from dataclasses import dataclass, field

MASTER_PORT = 29501
"""vLLM's default."""
HEARTBEAT_OFFSET = 100
"""Supervisors talk on vLLM's master port plus this."""


@dataclass(frozen=True)
class Node:
    """This node's place in a launch over several nodes."""

    rank: int
    master_addr: str
    master_port: int = MASTER_PORT
    address: str | None = None
    """This node's own, at which the others reach it; None: vLLM and Gloo find it themselves."""
    secret: str | None = field(default=None, repr=False)
    """What the nodes of this launch know and nobody else; None: from the environment or the state directory."""

    @property
    def heartbeat_port(self) -> int:
        """Where node 0's supervisor listens for the others'."""
        return self.master_port + HEARTBEAT_OFFSET
