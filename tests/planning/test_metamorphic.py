"""What must hold for every snapshot, whatever is in it: less known or worse news is never a better verdict.

Each suite is a function that returns the violations; a test shows that it returns none, and another that it returns
some when a rule is broken on purpose.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.checks import finding
from k3ctl.gpus import from_json

from .altering import (
    CLEAR,
    ORDER,
    SNAPSHOTS,
    Path_,
    at,
    changed,
    differing,
    judged,
    leaves,
    nulled,
    profile_for,
    read,
    removed,
    standing,
)

HEALTHY = {
    "b300-tp8": "nvml-hgx-b300",
    "gb300-tp8": "nvml-gb300-nvl72-4trays",
    "gb300-tp16": "nvml-gb300-nvl72-tray",
}
"""Healthy snapshots: what differs from them in a snapshot of the same shape is the evidence of its fault."""
NO_EVIDENCE = {
    "hostname",
    "meta",
    "schema",
    "serial",
    "vbios",
    "uuid",
    "bar1_total",
    "power_mw",
    "temperature_c",
    "clocks_mhz",
    "utilization",
    "pci",
    "ecc",
    "platform",
    "minor",
    "module_id",
    "persistence",
    "compute_mode",
    "virtualization",
    "addressing_mode",
    "c2c",
    "cpu_affinity",
    "pstate",
    "nics",
    "kernel",
    "arch",
    "cpu",
    "memory_kib",
    "numa",
}
"""Keys that no verdict rests on; left out to save time."""


def ids(path: Path) -> str:
    return path.stem


def keys(data: dict[str, Any], profile: str) -> list[Path_]:
    """The keys to take away: of the first and the last of everything, and those in which a fault shows."""
    found = [("nodes", *path) for path in leaves(data["nodes"], 2)]
    if profile in HEALTHY:
        found += differing(data, read(SNAPSHOTS[0].parent / f"{HEALTHY[profile]}.json"))
    return [
        path for path in dict.fromkeys(found) if not NO_EVIDENCE & set(path) and isinstance(path[-1], str)
    ]


def cleared_by_taking_away(data: dict[str, Any], profile: str) -> Iterator[str]:
    """Keys whose absence turns a snapshot into an all-clear that it was not."""
    if standing(data, profile) in CLEAR:
        return
    for number, path in enumerate(keys(data, profile)):
        for way in (removed, nulled)[number % 2 :: 2]:
            if (now := standing(changed(data, path, way), profile)) in CLEAR:
                yield f"without {path} ({way.__name__}): {now}"


def unmoved_by_taking_away(data: dict[str, Any], profile: str) -> Iterator[str]:
    """Evidence of a clear verdict that can be taken away and leaves it clear."""
    assert standing(data, profile) in CLEAR
    for path in EVIDENCE:
        for node in range(len(data["nodes"])):
            full = ("nodes", node, *path)
            if path[0] == "gpus":
                full = ("nodes", node, "gpus", 1, *path[1:])
            try:
                at(data, full)
            except (KeyError, IndexError, TypeError):
                continue
            used = judged(data, profile).group.members
            if data["nodes"][node]["hostname"] in used:
                now = standing(changed(data, full, nulled), profile)
                if now in CLEAR and not _other_hosts(data, profile, full):
                    yield f"without {full}: still {now}"


def _other_hosts(data: dict[str, Any], profile: str, path: Path_) -> bool:
    """The group moved to other hosts, which is right."""
    before, after = (
        judged(data, profile).group.members,
        judged(changed(data, path, nulled), profile).group.members,
    )
    return set(before) != set(after)


EVIDENCE: tuple[Path_, ...] = (
    ("gpus", "fabric"),
    ("gpus", "fabric", "state"),
    ("gpus", "fabric", "status"),
    ("gpus", "fabric", "health_mask"),
    ("gpus", "fabric", "health_summary"),
    ("gpus", "links"),
    ("gpus", "links", 0, "state"),
    ("gpus", "memory"),
    ("gpus", "memory", "free"),
    ("gpus", "mig"),
    ("gpus", "mig", "mode"),
    ("gpus", "recovery_action"),
    ("gpus", "remapped_rows"),
    ("gpus", "clock_event_reasons"),
    ("gpus", "name"),
    ("pairs",),
    ("pairs", 0, "p2p"),
    ("pairs", 0, "p2p", "nvlink"),
    ("cuda",),
    ("cuda", 1, "multicast"),
    ("env",),
    ("nvml", "driver"),
    ("nvml", "cuda_driver"),
)


@pytest.mark.parametrize("path", SNAPSHOTS, ids=ids)
def test_no_reading_taken_away_gives_an_all_clear(path: Path) -> None:
    data = read(path)
    data["nodes"] = data["nodes"][:4]
    assert list(cleared_by_taking_away(data, profile_for(data))) == []


@pytest.mark.parametrize("name", HEALTHY.values())
def test_no_evidence_of_an_all_clear_is_idle(name: str) -> None:
    data = read(SNAPSHOTS[0].parent / f"{name}.json")
    assert list(unmoved_by_taking_away(data, profile_for(data))) == []


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("unread.fabric", "nvml-hgx-b300"),
        ("unread.fabric-health", "nvml-hgx-b300"),
        ("unread.links", "nvml-hgx-b300"),
        ("unread.peers", "nvml-hgx-b300"),
        ("unread.memory", "nvml-hgx-b300"),
        ("unread.health", "nvml-hgx-b300"),
        ("unread.environment", "nvml-hgx-b300"),
        ("unread.driver", "nvml-gb300-nvl72-tray"),
        ("unread.product", "nvml-hgx-b300"),
    ],
)
def test_without_a_rule_about_the_unread_the_suite_finds_the_gap(
    rule: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(rule, monkeypatch)
    data = read(SNAPSHOTS[0].parent / f"{name}.json")
    assert list(unmoved_by_taking_away(data, profile_for(data)))


def broken(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the teeth out of a rule: it finds nothing."""
    monkeypatch.setitem(finding.RULES, rule, replace(finding.RULES[rule], check=lambda _: iter(())))


GPU_WORSE: dict[str, tuple[Path_, Any]] = {
    "registration in progress": (("fabric", "state"), 2),
    "registration failed": (("fabric", "status"), 23),
    "fabric unhealthy": (("fabric", "health_summary"), 2),
    "route unhealthy": (("fabric", "health_mask"), 0x1A | 1 << 4),
    "another cluster": (("fabric", "cluster_uuid"), "5f0c0de0-1234-4abc-9def-00c0ffee0009"),
    "another product": (("name",), "NVIDIA H100 80GB HBM3"),
    "a card": (("name",), "NVIDIA H200 NVL"),
    "MIG": (("mig", "mode"), [1, 1]),
    "reset wanted": (("recovery_action",), 1),
    "remap failed": (("remapped_rows",), {"corrected": 0, "uncorrected": 9, "pending": 0, "failure": 1}),
    "too hot": (("clock_event_reasons",), 0x40),
    "no links": (("links",), []),
    "memory held": (("memory", "free"), 2**30),
    "a process": (("processes",), [{"pid": 7, "bytes": 200 * 2**30}]),
}
NODE_WORSE: dict[str, tuple[Path_, Any]] = {
    "driver library mismatch": (("nvml", "error"), {"na": "LibRmVersionMismatch", "code": 18}),
    "old driver": (("nvml", "driver"), "570.1.1"),
    "old CUDA": (("nvml", "cuda_driver"), 12080),
    "fabric manager down": (("services", "nvidia-fabricmanager"), {"load": "loaded", "active": "failed"}),
    "fabric manager of another version": (
        ("services", "nvidia-fabricmanager"),
        {"load": "loaded", "active": "active", "version": "570.1"},
    ),
    "IMEX not ready": (("imex", "ctl_query"), "NOT_READY"),
    "no IMEX channel": (("imex", "channels"), []),
    "NVLS off": (("env", "NCCL_NVLS_ENABLE"), "0"),
    "peer access off": (("env", "NCCL_P2P_DISABLE"), "1"),
    "multi-node NVLink off": (("env", "NCCL_MNNVL_ENABLE"), "0"),
    "old runner": (("env", "VLLM_USE_V2_MODEL_RUNNER"), "0"),
    "a GPU missing": (("gpus",), None),
    "dead pair": (("pairs",), None),
    "no multicast": (("cuda",), None),
}


def worsened(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies with one thing made worse: of every GPU of the first and last host, and of every host."""
    for n, node in enumerate(data["nodes"]):
        for what, (path, value) in NODE_WORSE.items():
            if altered := _node_worse(data, n, what, path, value):
                yield f"node {n}: {what}", altered
        if n not in (0, len(data["nodes"]) - 1):
            continue
        for g in sorted({0, len(node["gpus"]) - 1} & set(range(len(node["gpus"])))):
            for what, (path, value) in GPU_WORSE.items():
                altered = copy.deepcopy(data)
                target = altered["nodes"][n]["gpus"][g]
                if "handle" in target or any(not isinstance(target.get(key), dict) for key in path[:-1]):
                    continue
                at(target, path[:-1])[path[-1]] = value
                yield f"node {n} GPU {g}: {what}", altered


def _node_worse(data: dict[str, Any], n: int, what: str, path: Path_, value: Any) -> dict[str, Any] | None:
    altered = copy.deepcopy(data)
    node = altered["nodes"][n]
    if any(not isinstance(node.get(key), dict) for key in path[:-1]):
        return None
    if what == "fabric manager down" and path[-1] not in node["services"]:
        return None
    if value is not None:
        at(node, path[:-1])[path[-1]] = value
        return altered
    if not node.get(path[0]):
        return None
    if what == "a GPU missing":
        node["gpus"].pop()
    elif what == "dead pair":
        node["pairs"][0]["p2p"]["nvlink"] = 3
    else:
        node["cuda"][0]["multicast"] = 0
    return altered


def better_when_worse(data: dict[str, Any], profile: str) -> Iterator[str]:
    """Changes for the worse after which the verdict is better."""
    before = standing(data, profile)
    for what, altered in worsened(data):
        after = standing(altered, profile)
        if ORDER.index(after) > ORDER.index(before):
            yield f"{what}: {before} → {after}"


@pytest.mark.parametrize("path", SNAPSHOTS, ids=ids)
def test_nothing_made_worse_is_a_better_verdict(path: Path) -> None:
    data = read(path)
    data["nodes"] = data["nodes"][:3]
    assert list(better_when_worse(data, profile_for(data))) == []


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        # no NVLink between hosts of a board, no IMEX there: what a tray needs is nothing to it
        ("nvml-hgx-b300", {"another cluster", "IMEX not ready", "no IMEX channel", "multi-node NVLink off"}),
        # a tray has no fabric manager of its own
        ("nvml-gb300-nvl72-tray", {"fabric manager down", "fabric manager of another version"}),
    ],
)
def test_everything_made_worse_is_noticed(name: str, harmless: set[str]) -> None:
    data = read(SNAPSHOTS[0].parent / f"{name}.json")
    profile = profile_for(data)
    unnoticed = {
        what.partition(": ")[2] for what, altered in worsened(data) if standing(altered, profile) in CLEAR
    }
    assert unnoticed == harmless


@pytest.mark.parametrize(
    ("rule", "unnoticed"),
    [
        ("fabricmanager.inactive", "fabric manager down"),
        ("clock.hw-thermal-slowdown", "too hot"),
        ("memory.remap-failure", "remap failed"),
        ("gpu.reset", "reset wanted"),
    ],
)
def test_without_a_rule_something_worse_goes_unnoticed(
    rule: str, unnoticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(rule, monkeypatch)
    data = read(SNAPSHOTS[0].parent / "nvml-hgx-b300.json")
    assert unnoticed in {
        what.partition(": ")[2] for what, altered in worsened(data) if standing(altered, "b300-tp8") in CLEAR
    }


def permuted(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same machines, told in another order or under other names."""
    turned = copy.deepcopy(data)
    turned["nodes"].reverse()
    for node in turned["nodes"]:
        for key in ("gpus", "pairs", "cuda"):
            node[key] = node.get(key, [])[::-1]
    yield "reversed", turned
    renamed = copy.deepcopy(data)
    for node in renamed["nodes"]:
        node["hostname"] = f"other-{node['hostname']}"
    yield "renamed", renamed


def moved_by_permuting(data: dict[str, Any], profile: str) -> Iterator[str]:
    """Orders and names that change the verdict, what is left out, or the ids of the reasons."""
    before = judged(data, profile)
    for what, altered in permuted(data):
        after = judged(altered, profile)
        if facts(before) != facts(after):
            yield f"{what}: {facts(before)} → {facts(after)}"


def facts(found: Any) -> tuple[Any, ...]:
    out = sorted((entry.node.removeprefix("other-"), entry.why) for entry in found.group.left_out)
    return (
        found.standing,
        json.dumps(out).replace("other-", ""),
        sorted({reason.id for reason in found.reasons}),
    )


@pytest.mark.parametrize("path", SNAPSHOTS, ids=ids)
def test_order_and_names_change_nothing(path: Path) -> None:
    data = read(path)
    assert list(moved_by_permuting(data, profile_for(data))) == []


def test_a_rule_that_looks_at_a_name_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = finding.RULES["fabric.unhealthy"]

    def by_name(view: Any) -> Iterator[finding.Hit]:
        return rule.check(view) if view.node.hostname == "tray02" else iter(())

    monkeypatch.setitem(finding.RULES, rule.id, replace(rule, check=by_name))
    data = read(SNAPSHOTS[0].parent / "round2" / "gb300-4trays-one-unhealthy.json")
    assert list(moved_by_permuting(data, "gb300-tp8"))


def test_there_are_snapshots_of_every_kind() -> None:
    assert len(SNAPSHOTS) >= 36
    assert all(from_json(read(path))[0].nodes for path in SNAPSHOTS)
