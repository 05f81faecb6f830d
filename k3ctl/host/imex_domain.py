"""The IMEX domain as ``nvidia-imex-ctl -N`` prints it: JSON (``-j``), or a table with a matrix."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from k3ctl.host.shell import Run, run
from k3ctl.host.types import ImexDomain, ImexNode

LIMIT_S = 3.0
CONNECTED, VERSION_MISMATCH, NODEMAP_MISMATCH = "CONNECTED", "VERSION_MISMATCH", "NODE_MAP_MISMATCH"
UP, READY = "UP", "READY"
READY_ANSWERS = ("READY", "UP")
"""Answers of ``nvidia-imex-ctl -q`` that mean ready; every other one is a state in which memory cannot be shared."""
_LETTERS = {
    "C": CONNECTED,
    "I": "INVALID",
    "N": "NEVER_CONNECTED",
    "R": "RECOVERING",
    "D": "DISCONNECTED",
    "A": "AUTHENTICATING",
    "!V!": VERSION_MISMATCH,
    "!M!": NODEMAP_MISMATCH,
}
_NODE = re.compile(r"Node #(\d+)\s*[*-]\s*(\S+).*?\s-\s*([A-Z_ ]+?)\s*-\s*Version:\s*(\S+)")
_DOMAIN = re.compile(r"Domain State:\s*(\S+)")


def read(exec_: Run = run) -> ImexDomain | None:
    """The domain as this host's IMEX service sees it; None without the tool or an answer."""
    answer = exec_(["nvidia-imex-ctl", "-N", "-j"], LIMIT_S)
    if answer.code:
        return None
    try:
        return parse(answer.stdout)
    except ValueError:
        return None


def membership(tables: Iterable[tuple[str, ImexDomain]]) -> dict[str, frozenset[str]]:
    """The IMEX domain of each tray, as the set of nodes that its own table lists.

    Tables that list the same nodes are one domain, unless they are fewer nodes than trays: then every tray serves
    only itself (a list with nothing but loopback, say), and its own name tells it apart.
    """
    lists = {tray: frozenset(node.host for node in domain.nodes) for tray, domain in tables if domain.nodes}
    trays = Counter(lists.values())
    return {tray: nodes if trays[nodes] <= len(nodes) else nodes | {tray} for tray, nodes in lists.items()}


def parse(content: str) -> ImexDomain:
    """The domain from JSON or from the table; raises ValueError when it is neither."""
    stripped = content.lstrip()
    if stripped.startswith("{"):
        return _from_json(json.loads(stripped))
    return _from_table(content)


def _from_json(data: Any) -> ImexDomain:
    nodes = data.get("nodes") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(nodes, Mapping):
        raise ValueError("no `nodes` in the IMEX answer")  # noqa: TRY004 (content, not a Python type)
    return ImexDomain(
        status=str(data.get("status", "")),
        nodes=tuple(_json_node(number, node) for number, node in nodes.items() if isinstance(node, Mapping)),
    )


def _json_node(number: str, node: Mapping[str, Any]) -> ImexNode:
    links = node.get("connections")
    return ImexNode(
        number=int(number),
        host=str(node.get("host", "")),
        name=_text(node.get("hostName")),
        status=str(node.get("status", "")),
        version=_text(node.get("version")),
        links={peer: str(link.get("status", "")) for peer, link in links.items() if isinstance(link, Mapping)}
        if isinstance(links, Mapping)
        else {},
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _from_table(content: str) -> ImexDomain:
    state = _DOMAIN.search(content)
    found = [m.groups() for m in _NODE.finditer(content)]
    if not state and not found:
        raise ValueError("no IMEX node table")
    rows = _matrix(content, len(found))
    return ImexDomain(
        status=state.group(1) if state else "",
        nodes=tuple(
            ImexNode(
                number=int(number),
                host=host,
                status=status.strip(),
                version=None if version == "N/A" else version,
                links=rows.get(int(number), {}),
            )
            for number, host, status, version in found
        ),
    )


def _matrix(content: str, size: int) -> dict[int, dict[str, str]]:
    _, _, after = content.partition("Nodes From\\To")
    rows = {}
    for line in after.splitlines()[1:]:
        words = line.split()
        if len(words) == size + 1 and words[0].isdigit():
            rows[int(words[0])] = {str(i): _LETTERS.get(word, word) for i, word in enumerate(words[1:])}
    return rows
