"""Layers of the served model on one GPU, stock against ours in the same run: µs, kernels, byte floor, a picture.

usage: bench_layer.py OUT [--layers 8] [--batches 1,8,64] [--slots all] [--limit 400]        (`make bench-layer`)

One vLLM engine with one TP8 rank's shapes (rank_model.py). Its decode graphs are captured for each form and
replayed under a profiler; a layer is cut out of the trace at its two mixtures of residuals. Forms:

  vllm        stock, without us
  SLOTS       replicated: router, latent down and latent up are read whole, as one GPU must
  SLOTS/split each rank reads an eighth of those three; the exchange that this needs is NOT in it, so the form shows
              what two or more GPUs could reach, and its tokens mean nothing

Writes OUT/bench-layer.jsonl (one line a batch, form and kind of layer; for docs/log/), OUT/layers.json (timelines)
and OUT/layer-b<B>.svg. What was measured stays when a later form fails or the time is over.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]
TP, CONTEXT_TOKENS = 8, 144
"""The rank's shapes; prompts of 128 tokens and the 16 steps before and in the trace."""
ATTENTION = {
    "KDA": ("kda in_proj", "kda core", "kda o_proj"),
    "MLA": ("mla in_proj", "mla query", "mla core", "mla value+gate", "mla o_proj"),
}
FEED_FORWARD = {
    "MoE": ("router", "latent down", "routed experts", "latent up", "shared expert"),
    "dense": ("dense mlp",),
}


def floors_us(batch: int, split: bool) -> dict[str, float]:
    """Byte floor in µs by kind of layer on one rank, at the bandwidth of a copy measured on an H200 (roofline.py)."""
    from k3ctl.facts.products import PRODUCTS
    from k3ctl.planning.roofline import Step, operators

    rates = PRODUCTS["H200"].rates
    assert rates is not None
    step = Step(tp=TP, requests=batch, context=CONTEXT_TOKENS, split_projections=split)
    by_name = {
        op.name: (op.weight_bytes + op.other_bytes) / rates.bytes_per_s * 1e6 for op in operators(step)
    }
    mixtures = 2 * by_name["attention residuals"]
    return {
        f"{attention} + {feed}": mixtures
        + sum(by_name[n] for n in (*ATTENTION[attention], *FEED_FORWARD[feed]))
        for attention in ATTENTION
        for feed in FEED_FORWARD
    }


def split_block() -> type:
    """``MoeBlock`` whose replicated projections read an eighth of their rows; the rest of their results is stale."""
    import torch

    from runtime.kernels.skinny_gemm.dispatch import SkinnyGemm
    from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec
    from runtime.model.providers.moe import MoeBlock

    def eighth(weight: Any, epilogue: str) -> Any:
        part = weight[: weight.shape[0] // TP]
        operator = SkinnyGemm(SkinnyGemmSpec(*part.shape, epilogue), part)
        dtype = torch.float32 if epilogue == "fp32" else torch.bfloat16
        own = torch.zeros(64, part.shape[0], dtype=dtype, device=weight.device)

        def run(x: Any, out: Any) -> Any:
            operator(x, own[: x.shape[0]])
            return out

        return run

    class SplitMoeBlock(MoeBlock):
        def __init__(self, weights: Any, *rest: Any, **named: Any) -> None:
            super().__init__(weights, *rest, **named)
            self.router = eighth(weights.router, "fp32")
            self.down, self.up = eighth(weights.down, "bf16"), eighth(weights.up, "bf16")

    return SplitMoeBlock


class SplitLab:
    """Captures labels that end in `/split` with ``split_block``; hands everything else to the lab."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab

    def use(self, label: str) -> None:
        """Replay the graphs of ``label``."""
        from runtime.engine.hopper import executor

        text, _, form = label.partition("/")
        if form != "split" or label in self.lab.graphs:
            return self.lab.use(label)
        whole, executor.MoeBlock = executor.MoeBlock, split_block()
        try:
            self.lab.graphs.pop(text, None)
            self.lab.use(text)
            self.lab.graphs[label] = self.lab.graphs.pop(text)
        finally:
            executor.MoeBlock = whole


def lines(cut: dict[str, Any], label: str, batch: int, layers: int) -> list[dict[str, Any]]:
    """One line for each kind of layer in a trace that was cut."""
    form = "split" if label.endswith("/split") else "replicated"
    floor = floors_us(batch, form == "split")
    return [
        {
            "schema": "k3.bench_layer/1", "form": form, "slots": label.removesuffix("/split"), "requests": batch,
            "kind": kind, "layers": layers, "us": found["us"], "attention_us": found["attention_us"],
            "kernels": found["kernels"], "samples": found["layers"], "floor_us": round(floor[kind], 1),
            "share_of_floor": round(floor[kind] / found["us"], 3),
        }
        for kind, found in cut["kinds"].items()
    ]  # fmt: skip


def run(out: Path, layers: int, batches: list[int], slots: str) -> None:
    """Measure every form at every batch; results are on disk after each."""
    import layer_trace
    from engine_lab import Lab
    from hopper_ladder import machine
    from layer_picture import picture
    from rank_model import write_config

    forms = ("vllm", slots, slots + "/split")
    log = out / "bench-layer.jsonl"
    log.write_text(json.dumps({"schema": "k3.bench_layer/1", "machine": machine()}) + "\n")
    lab = Lab(str(write_config(Path("/tmp/k3-bench-layer"), layers=layers, block=3)), 4 << 30)
    use, timelines = SplitLab(lab).use, {}
    # by form, so that a form whose capture fails costs no other
    for label in forms:
        for batch in batches:
            use(label)
            lab.trace(batch, str(out / "trace.json"))
            cut = layer_trace.layers(str(out / "trace.json"), layers)
            timelines[f"{label} B{batch}"] = cut
            (out / "layers.json").write_text(json.dumps(timelines))
            with log.open("a") as file:
                for line in lines(cut, label, batch, layers):
                    file.write(json.dumps(line) + "\n")
                    print(line, flush=True)
    (out / "trace.json").unlink(missing_ok=True)
    for batch in batches:
        kinds = [(f, timelines[f"{f} B{batch}"]["kinds"].get("KDA + MoE")) for f in forms]
        panels = [(f"{f}, {batch} requests", k["us"], k["timeline"]) for f, k in kinds if k]
        (out / f"layer-b{batch}.svg").write_text(picture(panels), encoding="utf-8")


def main() -> None:
    """Parse arguments, bound the time, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--slots", default="mix,attend,feed_forward")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds; what is measured by then stays")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # vLLM inspects our model class in a process of its own
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    threading.Timer(a.limit, lambda: os._exit(124)).start()
    began = time.perf_counter()
    run(a.out, a.layers, [int(b) for b in a.batches.split(",")], a.slots)
    print(f"{time.perf_counter() - began:.0f} s", flush=True)
    sys.stdout.flush()
    os._exit(0)  # vLLM's teardown may take long, and nothing is left to say


if __name__ == "__main__":
    main()
