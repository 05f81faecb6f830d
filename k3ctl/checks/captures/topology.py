"""``nvidia-smi topo -m`` and ``topo -p2p n``: matrices with spaces, tabs, shifted or glued headers.

Only rows are read: GPU columns come first in every shape, so the header, which tools shift and glue, is not
needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from k3ctl.checks.captures.partial import Partial
from k3ctl.checks.captures.words import P2P_STATUS, TOPOLOGY_LEVEL
from k3ctl.gpus.types import Gpu, P2p, Pair
from k3ctl.host.values import NOT_CAPTURED

NOT_NVLINK = 5
"""NVML_P2P_STATUS_NOT_SUPPORTED."""
_ROW = re.compile(r"^\s*(GPU|NIC)(\d+)[\s\t]+(\S.*)$")
_NVLINK = re.compile(r"NV(\d+)$")
_PATH = re.compile(r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
_P2P = re.compile(r"(?:X|OK|CNS|GNS|TNS|DR|NS|U)$")


@dataclass(frozen=True)
class Matrix:
    """A GPU×GPU matrix of words, and the cells after it: CPU affinity, NUMA affinity, GPU NUMA id."""

    cells: dict[tuple[int, int], str]
    rest: dict[int, tuple[str, ...]]
    nics: int

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPU indices."""
        return tuple(sorted(self.rest))

    @property
    def nvlinks(self) -> dict[tuple[int, int], int]:
        """NVLinks between each pair of GPUs (0: none)."""
        return {
            pair: int(match[1]) if (match := _NVLINK.match(word)) else 0
            for pair, word in self.cells.items()
            if pair[0] < pair[1]
        }

    @property
    def sockets(self) -> int:
        """Distinct CPU affinities."""
        return len({cells[0] for cells in self.rest.values() if cells})


def looks_like(text: str) -> bool:
    """Whether ``text`` holds a topology or peer-access matrix."""
    return any(_row(line, pattern) for line in text.splitlines() for pattern in (_PATH, _P2P))


def matrix(text: str, pattern: re.Pattern[str] = _PATH) -> Matrix | None:
    """The matrix in ``text``; None when there is none."""
    rows, nics = {}, 0
    for line in text.splitlines():
        if found := _row(line, pattern):
            kind, index, words, rest = found
            if kind == "GPU":
                rows[index] = (words, rest)
            else:
                nics += 1
    size = len(rows)
    if not size:
        return None
    order = sorted(rows)
    cells = {
        (index, order[column]): word
        for index, (words, _) in rows.items()
        for column, word in enumerate(words[:size])
    }
    return Matrix(cells, {index: rest for index, (_, rest) in rows.items()}, nics)


def parse(text: str) -> Partial:
    """Both matrices as pairs of GPUs; raises ValueError when there is neither."""
    topology, peers = matrix(text, _PATH), matrix(text, _P2P)
    if topology is None and peers is None:
        raise ValueError("no topology matrix")
    gpus: dict[int, Gpu] = {}
    pairs: dict[tuple[int, int], Pair] = {}
    if topology is not None:
        gpus = {index: _gpu(index, topology.rest[index]) for index in topology.gpus}
        pairs = {pair: _topology_pair(pair, topology) for pair in topology.nvlinks}
    if peers is not None:
        for (a, b), word in peers.cells.items():
            gpus.setdefault(a, Gpu(index=a))
            if a < b:
                pair = pairs.get((a, b), Pair(a, b))
                pairs[a, b] = replace(pair, p2p=replace(pair.p2p, nvlink=P2P_STATUS.get(word, 6)))
    return Partial(gpus=tuple(gpus.values()), pairs=tuple(pairs.values()))


def _row(line: str, pattern: re.Pattern[str]) -> tuple[str, int, tuple[str, ...], tuple[str, ...]] | None:
    """(GPU or NIC, number, matrix words, further cells) of one row that has at least one matrix word."""
    match = _ROW.match(line)
    if not match:
        return None
    cells = [cell.strip() for cell in match[3].split("\t")] if "\t" in match[3] else match[3].split()
    words = []
    for cell in cells:
        if not pattern.match(cell):
            break
        words.append(cell)
    return (match[1], int(match[2]), tuple(words), tuple(cells[len(words) :])) if len(words) > 1 else None


def _gpu(index: int, rest: tuple[str, ...]) -> Gpu:
    affinity = rest[0] if rest and rest[0] not in ("", "N/A") else NOT_CAPTURED
    numa = int(rest[2]) if len(rest) > 2 and rest[2].isdigit() else NOT_CAPTURED
    return Gpu(index=index, cpu_affinity=affinity, gpu_numa_node=numa)


def _topology_pair(pair: tuple[int, int], topology: Matrix) -> Pair:
    word = topology.cells[pair]
    if topology.nvlinks[pair]:
        return Pair(*pair, p2p=P2p(nvlink=0))
    return Pair(*pair, ancestor=TOPOLOGY_LEVEL.get(word, NOT_CAPTURED), p2p=P2p(nvlink=NOT_NVLINK))
