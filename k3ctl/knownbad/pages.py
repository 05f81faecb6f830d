"""Faults that only counters show: drafts that are always accepted, steps that left the specialized path."""

from __future__ import annotations

import json
import re
from typing import Any

from k3ctl import signals

_VALUE = re.compile(r"^(?P<series>[^\s#{]+(?:\{.*\})?)\s+(?P<value>\S+)", re.M)
_STEPS = re.compile(r"^k3_(?:steps|rows|tokens)_total\{.*$", re.M)
REASON = "graph-not-specialized"


def all_accepted(path: str, page: str) -> str:
    """``/metrics`` as if every draft token was accepted."""
    if path != "/metrics":
        return page
    drafted = {_labels(m["series"]): m["value"] for m in _series(page, signals.DRAFT_TOKENS)}
    drafts = {_labels(m["series"]): m["value"] for m in _series(page, signals.DRAFTS)}

    def told(found: re.Match[str]) -> str:
        name, labels = found["series"].split("{", 1)[0], _labels(found["series"])
        if name == signals.ACCEPTED_TOKENS and labels in drafted:
            return f"{found['series']} {drafted[labels]}"
        if name == signals.ACCEPTED_PER_POSITION:
            whole = labels - {label for label in labels if label.startswith("position=")}
            return f"{found['series']} {drafts.get(whole, found['value'])}"
        return found[0]

    return _VALUE.sub(told, page)


def standard(path: str, page: str) -> str:
    """The witness as if every step had taken the standard path, on ``/k3/witness`` and on the pages of metrics."""
    if path == "/k3/witness":
        try:
            return json.dumps(_standard_table(json.loads(page)))
        except (ValueError, AttributeError, TypeError):
            return page
    return _STEPS.sub(
        lambda found: (
            found[0]
            .replace('path="specialized"', 'path="standard"')
            .replace('reason=""', f'reason="{REASON}"')
        ),
        page,
    )


def _standard_table(table: dict[str, Any]) -> dict[str, Any]:
    workers = [
        worker | {"steps": [_standard_step(step) for step in worker.get("steps", ())]}
        for worker in table["workers"]
    ]
    return table | {"workers": workers}


def _standard_step(step: dict[str, Any]) -> dict[str, Any]:
    return step | {"path": "standard", "reason": step.get("reason") or REASON}


def _series(page: str, name: str) -> list[re.Match[str]]:
    return [found for found in _VALUE.finditer(page) if found["series"].split("{", 1)[0] == name]


def _labels(series: str) -> frozenset[str]:
    inner = series.partition("{")[2].removesuffix("}")
    return frozenset(re.findall(r'[a-zA-Z_]\w*="(?:[^"\\]|\\.)*"', inner))
