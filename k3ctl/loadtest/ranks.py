"""A fingerprint per rank, from the runtime's witness pages, and what differs between ranks. Pure.

Every worker states what it runs on and with (``runtime/witness/fingerprint.py``). What must be the same on all ranks is
compared; what must not (its GPU, its processors) is only listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OWN = frozenset({"host", "gpu_uuid", "gpu_bus", "cpus"})
"""Parts of a fingerprint that differ by nature."""


def of_table(table: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """``ranks``, ``differ`` and ``missing`` of a ``k3.witness.table/1``; None without a witness.

    ``missing``: ranks of the deployment without a page, and pages without a fingerprint.
    """
    pages = [page for page in (table or {}).get("workers") or () if isinstance(page, Mapping)]
    if not pages:
        return None
    found = {_rank(page): _print(page) for page in pages}
    expected = max((int(page.get("workers") or 0) for page in pages), default=0)
    missing = [f"rank {rank} has no page" for rank in range(expected) if rank not in found]
    missing += [f"rank {rank} states no fingerprint" for rank, marks in sorted(found.items()) if not marks]
    return {
        "ranks": [{"rank": rank, **marks} for rank, marks in sorted(found.items())],
        "differ": differences({rank: marks for rank, marks in found.items() if marks}),
        "missing": missing,
    }


def differences(prints: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """One line per mark that is not the same on all ranks: ``torch: 2.14.0 on ranks 0-6, 2.13.0 on rank 7``."""
    names = sorted({name for marks in prints.values() for name in marks} - OWN)
    lines = []
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, marks in sorted(prints.items()):
            values.setdefault(_word(marks.get(name)), []).append(rank)
        if len(values) > 1:
            told = (f"{value} on {_ranks(ranks)}" for value, ranks in values.items())
            lines.append(f"{name}: {', '.join(told)}")
    return lines


def _print(page: Mapping[str, Any]) -> dict[str, Any]:
    marks = page.get("fingerprint")
    if not isinstance(marks, Mapping):
        return {}
    # versions that every page has are marks too
    named = {name: page[name] for name in ("runtime", "vllm", "decode_backend") if name in page}
    flat = {f"env.{name}": value for name, value in _mapping(marks.get("env")).items()}
    return {**named, **{str(name): value for name, value in marks.items() if name != "env"}, **flat}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rank(page: Mapping[str, Any]) -> int:
    value = page.get("rank")
    return value if isinstance(value, int) else 0


def _word(value: Any) -> str:
    return "not set" if value is None else str(value)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
