"""Tells the start of several nodes on stderr: one line a node in place on a terminal, a line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from k3ctl import output

if TYPE_CHECKING:
    from k3ctl.rack.lead import Node

REPEAT_S = 10.0
"""How often a counter that moves is told where stderr is no terminal."""


class Board:
    """What the lead hears, for people. Lines of text go above the nodes' lines."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._since = time.monotonic()
        self._width = max(map(len, hosts))
        self._stages = dict.fromkeys(hosts, "connecting")
        self._told: dict[str, tuple[str, float]] = {}
        self._drawn = 0
        self._live = True

    def line(self, text: str) -> None:
        """One line."""
        self._drawn = output.redraw([], self._drawn)
        output.note(text)
        self._draw()

    def end(self) -> None:
        """The nodes' lines stay where they are: nothing more happens to them."""
        self._live, self._drawn = False, 0

    def hear(self, node: Node, kind: str, message: Mapping[str, Any]) -> None:
        """News of a node."""
        if kind == "note":
            self.line(str(message.get("text")))
        elif kind in ("finding", "gone"):
            self.line(f"{node.host}: {message.get('text')}")
        if self._stages.get(node.host) != node.stage:
            self._stages[node.host] = node.stage
            self._moved(node.host, node.stage)

    def _moved(self, host: str, stage: str) -> None:
        if self._draw():
            return
        now = time.monotonic()
        # a stage without its counter: `loading weights 3/12`
        name = stage.rstrip("0123456789/")
        last, at = self._told.get(host, ("", 0.0))
        if name != last or now - at > REPEAT_S:
            self._told[host] = name, now
            output.note(f"{now - self._since:6.1f} s  {host:{self._width}}  {stage}")

    def _draw(self) -> bool:
        if not self._live:
            return False
        seconds = time.monotonic() - self._since
        lines = [f"{seconds:6.1f} s  {host:{self._width}}  {stage}" for host, stage in self._stages.items()]
        self._drawn = output.redraw(lines, self._drawn)
        return self._drawn > 0
