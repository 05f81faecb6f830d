"""Draw one layer's kernels over time, one panel a run, one lane a stream, all panels on one scale.

usage: layer_picture.py LAYERS.json KIND RUN [RUN ...] > layer.svg
   e.g. layer_picture.py docs/log/hopper-layers.json "KDA + MoE" "vllm B8" "mix,attend B8" > docs/images/layer-b8.svg

LAYERS.json is what bench_layer.py and hopper_ladder.py write: by run the kinds of layers with a timeline each.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LANE, GAP, LEFT, TOP = 1100, 22, 34, 12, 26
OURS = re.compile(r"AttnRes|SkinnyGemm|KdaDecode|KdaVerify|MoeRoute|Experts(GateUp|Down)|MlaDecode")
"""Kernels of ours by class name; everything else is vLLM's or a library's."""
COLOURS = {True: "#2f6fb0", False: "#b9bec6"}
LETTER_PX = 6.2
Timeline = list[dict[str, Any]]


def lanes(timeline: Timeline) -> list[Timeline]:
    """Kernels by stream, in order of first use; those that overlap on one stream get lanes below each other."""
    streams: dict[Any, list[Timeline]] = {}
    for event in sorted(timeline, key=lambda e: e["start_us"]):
        rows = streams.setdefault(event["stream"], [])
        free = next((row for row in rows if row[-1]["start_us"] + row[-1]["us"] <= event["start_us"]), None)
        if free is None:
            rows.append(free := [])
        free.append(event)
    return [row for rows in streams.values() for row in rows]


def picture(panels: list[tuple[str, float, Timeline]]) -> str:
    """An SVG of ``panels``: title, µs of the layer, its kernels."""
    longest = max(us for _, us, _ in panels)
    scale = (WIDTH - 2 * LEFT) / longest
    parts: list[str] = []
    y = TOP
    for title, us, timeline in panels:
        rows = lanes(timeline)
        parts.append(_text(LEFT, y, f"{title}: {us:.0f} µs, {len(timeline)} kernels", 13))
        for row, lane in enumerate(rows):
            parts += [_bar(event, y + 8 + row * LANE, scale) for event in lane]
        y += 8 + len(rows) * LANE + GAP
    parts.append(_axis(longest, scale, y - GAP + 6))
    parts.append(
        _text(LEFT, y - GAP + 36, "blue: our kernels · grey: vLLM's and libraries' · a lane is a stream", 10)
    )
    height = y + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" role="img">\n<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _bar(event: dict[str, Any], y: float, scale: float) -> str:
    x, width = LEFT + event["start_us"] * scale, max(event["us"] * scale, 1.0)
    ours = bool(OURS.search(event["kernel"]))
    title = f"<title>{escape(event['kernel'])}: {event['us']:.1f} µs from {event['start_us']:.1f}</title>"
    box = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 4}" fill="{COLOURS[ours]}" rx="2"/>'
    letters = int((width - 6) / LETTER_PX)
    name = event["kernel"].rsplit("::", 1)[-1]
    label = ""
    if letters >= 4:
        short = name if len(name) <= letters else name[: letters - 1] + "…"
        label = _text(x + 3, y + 13, short, 10, "#ffffff" if ours else "#22252a")
    return f"<g>{title}{box}{label}</g>"


def _axis(longest: float, scale: float, y: float) -> str:
    step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if longest / s <= 12)
    marks = [tick * step for tick in range(int(longest / step) + 1)]
    return "".join(_text(LEFT + us * scale, y + 10, f"{us} µs", 10, "#666b73") for us in marks)


def _text(x: float, y: float, text: str, size: int, colour: str = "#22252a") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def main() -> None:
    """Read the runs that are named, and print the picture."""
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    runs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    kind, names = sys.argv[2], sys.argv[3:]
    if missing := [name for name in names if kind not in runs.get(name, {}).get("kinds", {})]:
        sys.exit(f"no {kind!r} in {', '.join(missing)}; runs are: {', '.join(runs)}")
    found = [(f"{kind}, {name}", runs[name]["kinds"][kind]) for name in names]
    sys.stdout.write(picture([(title, layer["us"], layer["timeline"]) for title, layer in found]))


if __name__ == "__main__":
    main()
