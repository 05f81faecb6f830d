"""Tools that look at single layers of a decode step on a GPU host: the cut of a trace, floors, the picture."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "scripts" / "gpu"
SAVED = Path(__file__).parents[2] / "docs" / "log" / "hopper-layers.json"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


def trace(
    tmp_path: Path, steps: int, layers: int, mla: tuple[int, ...] = (), dense: tuple[int, ...] = ()
) -> str:
    """A Chrome trace: every kernel takes 3 µs and the next starts 1 µs later."""
    events: list[dict[str, Any]] = []

    def kernel(name: str) -> None:
        events.append(
            {"cat": "kernel", "name": name, "ts": 4.0 * len(events), "dur": 3.0, "args": {"stream": 7}}
        )

    for _ in range(steps):
        for layer in range(layers):
            kernel("_attn_res_kernel")
            kernel("flash_mla" if layer in mla else "kda_decode_kernel")
            kernel("_attn_res_kernel")
            kernel("gemm" if layer in dense else "humming_kernel")
            kernel("add<float>")
        kernel("_attn_res_kernel")
        kernel("lm_head")
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"cat": "cpu_op", "name": "x"}, *reversed(events)]}))
    return str(path)


def test_a_trace_is_cut_into_kinds_of_layers(tmp_path: Path) -> None:
    import layer_trace

    cut = layer_trace.layers(trace(tmp_path, steps=3, layers=4, mla=(3,), dense=(0,)), 4)
    assert cut["steps"] == 3
    kinds = {kind: (found["layers"], found["kernels"], found["us"]) for kind, found in cut["kinds"].items()}
    assert kinds == {"KDA + dense": (3, 5, 20.0), "KDA + MoE": (6, 5, 20.0), "MLA + MoE": (3, 5, 20.0)}
    assert cut["kinds"]["KDA + MoE"]["attention_us"] == 8.0
    assert cut["layers_us"] == 80.0


def test_steps_of_another_number_of_layers_are_not_cut(tmp_path: Path) -> None:
    import layer_trace

    cut = layer_trace.layers(trace(tmp_path, steps=1, layers=4), 46)
    assert cut["steps"] == 0 and cut["layers_us"] is None and cut["kinds"] == {}


@pytest.mark.parametrize(
    ("batch", "whole", "split"), [(1, 69.4, 45.9), (8, 126.3, 102.8), (64, 407.3, 383.8)]
)
def test_the_floors_are_those_that_were_computed_by_hand(batch: int, whole: float, split: float) -> None:
    import bench_layer

    assert bench_layer.floors_us(batch, False)["KDA + MoE"] == pytest.approx(whole, rel=2e-3)
    assert bench_layer.floors_us(batch, True)["KDA + MoE"] == pytest.approx(split, rel=2e-3)
    dense = "KDA + dense"
    assert bench_layer.floors_us(batch, True)[dense] == bench_layer.floors_us(batch, False)[dense]


def test_a_line_says_its_form_and_its_share(tmp_path: Path) -> None:
    import bench_layer
    import layer_trace

    cut = layer_trace.layers(trace(tmp_path, steps=2, layers=2), 2)
    (line,) = bench_layer.lines(cut, "mix,attend/split", 8, 2)
    assert (line["form"], line["slots"], line["requests"]) == ("split", "mix,attend", 8)
    assert line["share_of_floor"] == pytest.approx(line["floor_us"] / line["us"], rel=1e-3)
    (stock,) = bench_layer.lines(cut, "vllm", 8, 2)
    assert stock["form"] == "replicated" and stock["floor_us"] > line["floor_us"]


def timeline(*kernels: tuple[str, float, float, int]) -> list[dict[str, Any]]:
    return [{"kernel": k, "start_us": at, "us": us, "stream": stream} for k, at, us, stream in kernels]


def test_a_lane_is_a_stream_and_no_two_kernels_of_a_lane_overlap() -> None:
    import layer_picture

    events = timeline(("a", 0, 5, 1), ("b", 1, 2, 2), ("c", 4, 4, 1), ("d", 5, 1, 1), ("e", 4, 1, 2))
    lanes = [[e["kernel"] for e in lane] for lane in layer_picture.lanes(events[::-1])]
    assert lanes == [["a", "d"], ["c"], ["b", "e"]]


def test_the_picture_has_a_bar_a_kernel_on_one_scale() -> None:
    import layer_picture

    panels = [
        ("stock <x> & y", 100.0, timeline(("vllm::f<1>", 0, 50, 1))),
        ("ours", 50.0, timeline(("SkinnyGemmKernel", 0, 25, 1), ("KdaDecodeKernel", 25, 25, 1))),
    ]
    root = ET.fromstring(layer_picture.picture(panels))
    bars = [g.find(f"{SVG}rect") for g in root.iter(f"{SVG}g")]
    widths = [float(bar.get("width", "nan")) for bar in bars if bar is not None]
    assert widths == pytest.approx([widths[0], widths[0] / 2, widths[0] / 2], abs=0.11)
    colours = [bar.get("fill") for bar in bars if bar is not None]
    assert colours[0] != colours[1] == colours[2]
    assert "stock <x> & y: 100 µs, 1 kernels" in [t.text for t in root.iter(f"{SVG}text")]


def test_the_committed_picture_is_drawn_from_the_committed_timelines() -> None:
    command = [
        sys.executable,
        str(TOOLS / "layer_picture.py"),
        str(SAVED),
        "KDA + MoE",
        "vllm B8",
        "mix,attend B8",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (SAVED.parents[1] / "images" / "layer-b8.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(("kind", "run"), [("KDA + MoE", "vllm B7"), ("KDA + nothing", "vllm B8")])
def test_a_run_that_is_not_there_is_named(kind: str, run: str) -> None:
    command = [sys.executable, str(TOOLS / "layer_picture.py"), str(SAVED), kind, run]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and run in done.stderr and "Traceback" not in done.stderr
