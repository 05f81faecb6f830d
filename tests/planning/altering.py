"""Snapshots as JSON data with one thing changed, and the preflight's answers about them."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from k3ctl.checks.merge import Gathered
from k3ctl.gpus import from_json
from k3ctl.machine.record import Machine
from k3ctl.planning.preflight import Preflight, Standing
from k3ctl.planning.runnable import answer
from k3ctl.profiles.loader import load
from k3ctl.profiles.schema import Profile

FIXTURES = Path(__file__).parent.parent / "fixtures"
SNAPSHOTS = sorted(
    [path for path in FIXTURES.glob("nvml-*.json") if path.name != "nvml-schema.json"]
    + [*(FIXTURES / "round2").glob("*.json")]
)
ORDER = [Standing.REFUSED, Standing.SHORT, Standing.UNKNOWN, Standing.SHARE, Standing.RUNS]
CLEAR = (Standing.RUNS, Standing.SHARE)

Path_ = tuple[Any, ...]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def profile_for(data: dict[str, Any]) -> str:
    """A profile for the product that most of the GPUs are."""
    names = " ".join(str(gpu.get("name")) for node in data["nodes"] for gpu in node.get("gpus", []))
    if "GB300" in names:
        return "gb300-tp8" if len(data["nodes"]) > 1 else "gb300-tp16"
    return "b300-tp8" if "B300" in names else "h200-tp8-pp2"


def judged(data: dict[str, Any], profile: str) -> Preflight | None:
    """The preflight of ``profile``; None where nothing of the data can be read. A lone host is a share of a group."""
    try:
        snapshot, _ = from_json(data)
    except Exception:
        return None
    return answer(
        _profile(profile), Gathered(tuple(map(Machine, snapshot.nodes))), share=len(data["nodes"]) == 1
    )


@functools.cache
def _profile(name: str) -> Profile:
    return load(name)


def standing(data: dict[str, Any], profile: str) -> Standing:
    found = judged(data, profile)
    return found.standing if found else Standing.REFUSED


def leaves(value: Any, depth: int, path: Path_ = ()) -> Iterator[Path_]:
    """Every key of the objects down to ``depth`` levels; of a list its first and its last element."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            if depth:
                yield from leaves(item, depth - 1, (*path, key))
    elif isinstance(value, list) and value:
        for index in sorted({0, len(value) - 1}):
            yield from leaves(value[index], depth, (*path, index))


def differing(value: Any, other: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The keys at which two snapshots of one shape differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        for key in value.keys() & other.keys():
            yield from differing(value[key], other[key], (*path, key))
    elif isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        for index, (mine, theirs) in enumerate(zip(value, other, strict=True)):
            yield from differing(mine, theirs, (*path, index))
    elif value != other and path and isinstance(path[-1], str):
        yield path


def at(data: Any, path: Path_) -> Any:
    for key in path:
        data = data[key]
    return data


def changed(data: dict[str, Any], path: Path_, change: Callable[[Any, Any], None]) -> dict[str, Any]:
    """A copy in which ``change(parent, key)`` was done to what is at ``path``; the rest is the original's own."""
    altered = copy.copy(data)
    parent: Any = altered
    for key in path[:-1]:
        parent[key] = copy.copy(parent[key])
        parent = parent[key]
    change(parent, path[-1])
    return altered


def removed(parent: Any, key: Any) -> None:
    del parent[key]


def nulled(parent: Any, key: Any) -> None:
    parent[key] = None
