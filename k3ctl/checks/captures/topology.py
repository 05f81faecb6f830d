"""``nvidia-smi topo -m`` and ``topo -p2p n``: matrices with spaces, tabs, shifted or glued headers.

Only rows are read: GPU columns come first in every shape, so the header, which tools shift and glue, is not
needed. Cells may be glued to each other (``NODENODE``): they are read word by word, not by their spaces.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from k3ctl.checks.captures.partial import Partial
from k3ctl.checks.captures.words import P2P_STATUS, TOPOLOGY_LEVEL
from k3ctl.gpus.types import Gpu, P2p, Pair
from k3ctl.host.types import Nic
from k3ctl.host.values import NOT_CAPTURED, Maybe

NOT_NVLINK = 5
"""NVML_P2P_STATUS_NOT_SUPPORTED."""
_ROW = re.compile(r"^\s*(GPU|NIC)(\d+)\s*(\S.*)$")
_NVLINK = re.compile(r"NV(\d+)$")
_PATH = re.compile(r"\s*(X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS)(?![a-z])")
_P2P = re.compile(r"\s*(X|OK|CNS|GNS|TNS|DR|NS|U)(?![a-z])")
_NIC_NAME = re.compile(r"^\s*NIC(\d+): (\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Matrix:
    """A GPU×GPU matrix of words, and the cells after it: CPU affinity, NUMA affinity, GPU NUMA id."""

    cells: dict[tuple[int, int], str]
    rest: dict[int, tuple[str, ...]]
    nics: int
    """Columns of NICs in the rows of the GPUs, or rows of NICs where those are fewer."""
    nic_cells: dict[tuple[int, int], str]
    """(GPU, number of the NIC) → the word of their path."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPU indices."""
        return tuple(sorted(self.rest))

    @functools.cached_property
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
    rows, listed = {}, 0
    for line in text.splitlines():
        if found := _row(line, pattern):
            kind, index, words, rest = found
            if kind == "GPU":
                rows[index] = (words, rest)
            else:
                listed += 1
    size = len(rows)
    if not size:
        return None
    order = sorted(rows)
    nic_cells = {
        (index, column): word
        for index, (words, _) in rows.items()
        for column, word in enumerate(words[size:])
    }
    nics = max([listed, *(column + 1 for _, column in nic_cells)])
    cells = {
        (index, order[column]): word
        for index, (words, _) in rows.items()
        for column, word in enumerate(words[:size])
    }
    return Matrix(cells, {index: rest for index, (_, rest) in rows.items()}, nics, nic_cells)


def parse(text: str) -> Partial:
    """Both matrices as pairs of GPUs; raises ValueError when there is neither."""
    topology, peers = matrix(text, _PATH), matrix(text, _P2P)
    if topology is None and peers is None:
        raise ValueError("no topology matrix")
    gpus: dict[int, Gpu] = {}
    pairs: dict[tuple[int, int], Pair] = {}
    names: list[str] = []
    if topology is not None:
        legend = {int(number): name for number, name in _NIC_NAME.findall(text)}
        names = [legend.get(number, f"NIC{number}") for number in range(topology.nics)]
        gpus = {index: _gpu(index, topology, names) for index in topology.gpus}
        pairs = {pair: _topology_pair(pair, topology) for pair in topology.nvlinks}
    if peers is not None:
        for (a, b), word in peers.cells.items():
            gpus.setdefault(a, Gpu(index=a))
            if a < b:
                pair = pairs.get((a, b), Pair(a, b))
                pairs[a, b] = replace(pair, p2p=replace(pair.p2p, nvlink=P2P_STATUS.get(word, 6)))
    nics = tuple(Nic(name, numa=-1, link_layer="", rate_gbps=0, state="") for name in names)
    return Partial(gpus=tuple(gpus.values()), pairs=tuple(pairs.values()), nics=nics)


def _row(line: str, pattern: re.Pattern[str]) -> tuple[str, int, tuple[str, ...], tuple[str, ...]] | None:
    """(GPU or NIC, number, matrix words, further cells) of one row that has at least one matrix word."""
    match = _ROW.match(line)
    if not match:
        return None
    words, at = [], match.start(3)
    while found := pattern.match(line, at):
        words.append(found[1])
        at = found.end()
    after = line[at:]
    rest = [cell.strip() for cell in after.strip(" ").split("\t")] if "\t" in after else after.split()
    if rest and not rest[0] and "\t" in after:
        rest = rest[1:]  # the tab that ended the last word
    while rest and not rest[-1]:
        rest.pop()
    return (match[1], int(match[2]), tuple(words), tuple(rest)) if len(words) > 1 else None


def _gpu(index: int, topology: Matrix, nics: Sequence[str]) -> Gpu:
    def cell(column: int) -> Maybe[str]:
        rest = topology.rest[index]
        return rest[column] if len(rest) > column and rest[column] not in ("", "N/A") else NOT_CAPTURED

    numa = cell(2)
    return Gpu(
        index=index,
        cpu_affinity=cell(0),
        numa_affinity=cell(1),
        gpu_numa_node=int(numa) if isinstance(numa, str) and numa.isdigit() else NOT_CAPTURED,
        nic_paths={name: word for n, name in enumerate(nics) if (word := topology.nic_cells.get((index, n)))},
    )


def _topology_pair(pair: tuple[int, int], topology: Matrix) -> Pair:
    word = topology.cells[pair]
    if topology.nvlinks[pair]:
        return Pair(*pair, p2p=P2p(nvlink=0))
    return Pair(*pair, ancestor=TOPOLOGY_LEVEL.get(word, NOT_CAPTURED), p2p=P2p(nvlink=NOT_NVLINK))
