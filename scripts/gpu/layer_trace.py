"""Cut a Chrome trace of decode steps into layers: a layer has exactly two mixtures, the step one more at its end."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

MIXTURE = re.compile(r"attn_res", re.I)
KDA = re.compile(r"kda|recurrent", re.I)
MOE = re.compile(r"humming|ExpertsGateUp|moe_experts", re.I)


def short(name: str) -> str:
    """A kernel's name as people know it: CuTe kernels by class, templates without arguments."""
    if name.startswith("kernel_cutlass") and (found := re.search(r"([A-Z]\w*?)_object_at", name)):
        return found[1]
    name = re.sub(r"^void |\(anonymous namespace\)::", "", name)
    if name.startswith("humming"):
        return "humming " + " ".join(re.findall(r"Shape<([^>]*)>", name)[:2]).replace("u", "")
    return re.sub(r"[<(].*", "", name)[:70]


def layers(path: str, count: int) -> dict[str, Any]:
    """Per kind of layer (`KDA + MoE`, …): µs of the whole layer and of its attention half, kernels, one timeline.

    ``count``: layers of the model. Steps are found by their number of mixtures, 2·count + 1.
    """
    whole_trace = json.loads(Path(path).read_text(encoding="utf-8"))
    events = [e for e in whole_trace["traceEvents"] if e.get("cat") == "kernel" and "dur" in e]
    events.sort(key=lambda e: e["ts"])
    marks = [i for i, e in enumerate(events) if MIXTURE.search(e["name"])]
    per_step = 2 * count + 1
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    whole: list[float] = []
    for first in range(0, len(marks) - per_step + 1, per_step):
        step = marks[first : first + per_step]
        whole.append(events[step[-1]]["ts"] - events[step[0]]["ts"])
        for layer in range(count):
            a, b, c = step[2 * layer : 2 * layer + 3]
            kind = ("KDA" if any(KDA.search(e["name"]) for e in events[a:b]) else "MLA") + (
                " + MoE" if any(MOE.search(e["name"]) for e in events[b:c]) else " + dense"
            )
            start = events[a]["ts"]
            found[kind].append(
                {
                    "us": events[c]["ts"] - start,
                    "attention_us": events[b]["ts"] - start,
                    "kernels": c - a,
                    "timeline": [
                        {
                            "kernel": short(e["name"]),
                            "start_us": round(e["ts"] - start, 2),
                            "us": e["dur"],
                            "stream": e.get("args", {}).get("stream"),
                        }
                        for e in events[a:c]
                    ],
                }
            )
    return {
        "steps": len(whole),
        "layers_us": statistics.median(whole) if whole else None,
        "kernels_in_all": len(events),
        "mixtures": len(marks),
        "kinds": {kind: _summary(items) for kind, items in found.items()},
    }


def _summary(items: list[dict[str, Any]]) -> dict[str, Any]:
    middle = sorted(items, key=lambda item: item["us"])[len(items) // 2]
    by_kernel: dict[str, list[float]] = defaultdict(list)
    for item in items:
        for kernel in item["timeline"]:
            by_kernel[kernel["kernel"]].append(kernel["us"])
    return {
        "layers": len(items),
        "us": round(statistics.median(item["us"] for item in items), 2),
        "attention_us": round(statistics.median(item["attention_us"] for item in items), 2),
        "kernels": statistics.mode(item["kernels"] for item in items),
        "by_kernel_us": {
            k: [round(statistics.mean(v), 2), round(len(v) / len(items), 2)] for k, v in by_kernel.items()
        },
        "timeline": middle["timeline"],
    }
