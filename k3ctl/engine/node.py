"""One node of a launch over several."""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT_OFFSET = 100
"""Supervisors talk on vLLM's master port plus this."""


@dataclass(frozen=True)
class Node:
    """This node's place in a launch over several nodes."""

    rank: int
    master_addr: str
    master_port: int = 29501

    @property
    def heartbeat_port(self) -> int:
        """Where node 0's supervisor listens for the others'."""
        return self.master_port + HEARTBEAT_OFFSET
