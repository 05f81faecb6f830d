"""The correctness ladder and the step times of the Hopper executor, unattended, on a GPU host.

usage: hopper_ladder.py OUT [--engines small,moe,latent,verify,large] [--layers 46] [--limit 560]

Each engine is a child process that writes OUT/<engine>.json after every part (a part that fails leaves its traceback
there, and the next one runs) and its log to OUT/<engine>.log. Cheapest and most telling first:

  small   8 layers: graphs without us against our loop with vLLM's slots, bit by bit; our slots against FP64 from
          recorded inputs; our slots in graphs, teacher-forced and free; requests that come and go; step times; layers
  moe     8 layers: the same with the feed-forward slot, and requests that are preempted
  latent  8 layers: the same with the slot of MLA layers
  verify  8 layers with n-gram speculation: verify rows at every accepted length
  large   --layers layers (46: a stage of TP8 x PP2): step and GPU time with and without us, layers

Needs vLLM 0.33.0, CuTe DSL and this repository on PYTHONPATH. Exit code 0 when every part ran, whatever it found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]
BEGAN = time.perf_counter()
OURS = "mix,attend"
ALL = "mix,attend,feed_forward"
LATENT = "mix,attend,attend_mla"


class Report:
    """Results by part, on disk after every part."""

    def __init__(self, path: Path, deadline: float) -> None:
        self.path, self.deadline, self.data = path, deadline, {}

    def part(self, name: str, run: Callable[[], Any]) -> Any:
        """Run one part; its result, or its traceback, is kept."""
        if time.time() > self.deadline:
            self.data[name] = {"skipped": "no time left"}
            return self._write()
        began = time.perf_counter()
        result = None
        try:
            result = run()
            self.data[name] = {"result": result, "s": round(time.perf_counter() - began, 1)}
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.data[name] = {"error": traceback.format_exc(), "s": round(time.perf_counter() - began, 1)}
        print(f"[{time.perf_counter() - BEGAN:6.1f} s] {name}: {_brief(self.data[name])}", flush=True)
        self._write()
        return result

    def _write(self) -> None:
        scratch = self.path.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.data, indent=1, default=str))
        scratch.replace(self.path)


def _brief(entry: dict[str, Any]) -> str:
    text = (
        entry["error"].strip().splitlines()[-1]
        if "error" in entry
        else json.dumps(entry.get("result"), default=str)
    )
    return text if len(text) < 1500 else text[:1500] + " …"


def machine() -> dict[str, Any]:
    """What this ran on."""
    import torch
    import triton
    import vllm

    gpu = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return {
        "gpu": subprocess.run(gpu, capture_output=True, text=True, check=False).stdout.strip(),
        "torch": torch.__version__, "triton": triton.__version__, "vllm": vllm.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())), "commit": os.environ.get("K3_COMMIT"),
    }  # fmt: skip


WITNESSED = {"worker_extension_cls": "runtime.witness.worker.WitnessExtension"}


def eight_layers(report: Report, **arguments: Any) -> Any:
    """An engine of 8 layers, on the report with its machine; None when it could not be built."""
    report.part("machine", machine)
    from engine_lab import Lab
    from rank_model import write_config

    folder = write_config(Path("/tmp/k3-small"), layers=8, block=3)
    return report.part("engine", lambda: Lab(str(folder), 4 << 30, **arguments))


# ---- small: what is right ---------------------------------------------------------------------------------


def small(report: Report) -> None:
    """The ladder, on 8 layers."""
    from fp64_checks import against_fp64

    if (lab := eight_layers(report, **WITNESSED)) is None:
        return
    report.part("seam", lambda: seam(lab))
    report.part("stock slots are vLLM, bit by bit", lambda: stock_slots(lab))
    report.part("our kernels against FP64, recorded inputs", lambda: against_fp64(lab))
    for label in ("mix", "attend", OURS):
        report.part(f"{label}: teacher-forced", lambda label=label: forced(lab, label))
    report.part("kernels of the captures", lambda: dict.fromkeys([OURS], lab.decode.kernels))
    report.part("witness", witness_page)
    report.part("promises change no bit", lambda: promises(lab))
    report.part("free tokens", lambda: free_tokens(lab))
    report.part("requests come and go", lambda: coming_and_going(lab))
    report.part(
        "step times", lambda: step_times(lab, ("vllm", "none", "mix", "attend", OURS), (1, 8, 64), 60)
    )
    report.part("layers", lambda: traced(lab, 8, ("vllm", OURS), (1, 8, 64), report.path))
    report.part("captures took s", lambda: lab.capture_s)


def seam(lab: Any) -> dict[str, Any]:
    """How vLLM laid out what we read."""
    import torch

    layer = next(x for x in lab.decode.layers if hasattr(x.self_attn, "in_proj_qkvgfab"))
    conv, state = layer.self_attn.kv_cache[:2]
    from runtime import witness

    page = witness.current()
    return {
        "build_s": round(lab.build_s, 1), "rows": lab.decode.setup.rows, "slots": lab.decode.slots.label,
        "conv": [list(conv.shape), list(conv.stride()), str(conv.dtype)],
        "state": [list(state.shape), list(state.stride()), str(state.dtype)],
        "channels_first": lab.decode.channels_first, "buffers_mib": lab.decode.buffers.nbytes / 2**20,
        "in_proj": list(layer.self_attn.in_proj_qkvgfab.weight.shape), "witness": None if page is None else page.about,
        "gpu_used_gb": (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) / 1e9,
        "experts": str(type(getattr(lab.decode.layers[-1].mlp.experts, "_quant_method", None)).__name__),
        "moe_backend": str(getattr(lab.decode.layers[-1].mlp.experts, "_quant_method", None))[:200],
    }  # fmt: skip


def stock_slots(lab: Any, steps: int = 8) -> dict[str, Any]:
    """Rung 1: our loop with every slot vLLM's own, against vLLM without us; and vLLM against itself as control."""
    import torch

    found = {}
    for batch in (1, 3, 8, 33, 64):
        prompts = lab.prompts(batch)
        lab.use("vllm")
        first = lab.logits(prompts, steps)
        again = lab.logits(prompts, steps)
        lab.use("none")
        ours = lab.logits(prompts, steps)
        found[batch] = {
            "vllm_repeats": [bool(torch.equal(a, b)) for a, b in zip(first, again, strict=True)],
            "equal": [bool(torch.equal(a, b)) for a, b in zip(first, ours, strict=True)],
            "finite": bool(all(torch.isfinite(x).all() for x in ours)),
            "distinct_argmax": int(torch.cat([x.argmax(-1) for x in first]).unique().numel()),
        }
    return found


def witness_page() -> Any:
    """What the witness says of this process's steps so far; the graphs are those captured last."""
    from runtime import witness

    found = witness.current()
    return None if found is None else found.page()


def captured(lab: Any) -> dict[str, Any]:
    """What the executor counted in its last captures, and the names that a capture of our kernels gives."""
    import torch

    from runtime.engine.hopper import capture

    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        lab.decode._launch_on_padding(8)
        nodes, names = capture.count(), capture.kernels()
    return {
        "slots": lab.decode.slots.label,
        "by_rows": lab.decode.kernels,
        "padding_launch": {"nodes": nodes, "kernels": None if names is None else len(names)},
        "names": None if names is None else sorted({n[:160] for n in names}),
    }


def forced(lab: Any, label: str, steps: int = 10) -> dict[str, Any]:
    """Rung 3: the same tokens through our graphs; logits against those of vLLM, step by step."""
    from fp64_checks import relative

    found: dict[str, Any] = {}
    for batch in (1, 3, 8, 33, 64):
        prompts = lab.prompts(batch)
        lab.use("vllm")
        theirs = lab.logits(prompts, steps)
        lab.use(label)
        ours = lab.logits(prompts, steps, forced=theirs)
        again = lab.logits(prompts, steps, forced=theirs)
        errors, flips, margins = [], 0, []
        for a, b in zip(ours, theirs, strict=True):
            errors.append(relative(a, b))
            differs = a.argmax(-1) != b.argmax(-1)
            flips += int(differs.sum())
            top = b.float().topk(2, -1).values
            margins += (top[:, 0] - top[:, 1])[differs].tolist()
        found[batch] = {
            "error_by_step": errors, "argmax_flips": flips, "rows": sum(x.shape[0] for x in ours),
            "margins_of_flips": margins[:8], "logit_std": float(theirs[-1].float().std()),
            "repeats": all(bool((a == b).all()) for a, b in zip(ours, again, strict=True)),
        }  # fmt: skip
    return found


def promises(lab: Any, label: str = OURS, steps: int = 10) -> dict[str, Any]:
    """Our kernels overlapped by promises give the bits of the same kernels without."""
    found = {}
    for batch in (1, 8, 64):
        prompts = lab.prompts(batch, seed=5)
        lab.use(label + "/alone")
        alone = lab.logits(prompts, steps)
        lab.use(label)
        runs = [lab.logits(prompts, steps) for _ in range(3)]
        found[batch] = [all(bool((a == b).all()) for a, b in zip(run, alone, strict=True)) for run in runs]
    return found


def free_tokens(lab: Any, count: int = 48, label: str = OURS) -> dict[str, Any]:
    """Rung 4: greedy tokens on damped weights; where they differ, how far apart vLLM's own logits are there."""
    found = {}
    for batch in (1, 8, 64):
        prompts = lab.prompts(batch, seed=9)
        lab.use("vllm")
        theirs = lab.tokens(prompts, count)
        lab.use(label)
        found[batch] = lab.differences(prompts, lab.tokens(prompts, count), theirs)
        found[batch]["distinct"] = len({t for row in theirs for t in row})
    return found


def coming_and_going(lab: Any, label: str = OURS) -> dict[str, Any]:
    """Rung 5: requests that arrive while others decode, of different lengths, so that prefills interleave."""

    prompts = [lab.prompts(1, 40 + 13 * i, seed=50 + i)[0] for i in range(12)]

    def run() -> list[list[int]]:
        waiting = [(prompt, 20 + 5 * (i % 4)) for i, prompt in enumerate(prompts)]
        names = [lab.add(*waiting.pop(0)) for _ in range(2)]

        def arrive(number: int, _: float) -> None:
            if waiting and number % 3 == 2:
                names.append(lab.add(*waiting.pop(0)))

        found = lab.steps(arrive)
        return [found[name] for name in names]

    lab.use("vllm")
    theirs, again = run(), run()
    lab.use(label)
    return {"vllm_repeats": theirs == again, **lab.differences(prompts, run(), theirs)}


# ---- how fast ---------------------------------------------------------------------------------------------


def step_times(lab: Any, labels: tuple[str, ...], batches: tuple[int, ...], count: int) -> dict[str, Any]:
    """Engine step and GPU time, alternating between labels, twice."""
    found: dict[str, Any] = {}
    for batch in batches:
        for label in labels:
            lab.use(label)
            lab.step_times(batch, 12)
        for label in labels * 2:
            lab.use(label)
            found.setdefault(f"B{batch}", {}).setdefault(label, []).append(lab.step_times(batch, count))
    return found


def traced(
    lab: Any, layers: int, labels: tuple[str, ...], batches: tuple[int, ...], path: Path
) -> dict[str, Any]:
    """µs and kernels per kind of layer; whole timelines go to a file of their own."""
    import layer_trace

    found: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    for batch in batches:
        for label in labels:
            lab.use(label)
            lab.trace(batch, "/tmp/k3-trace.json")
            cut = layer_trace.layers("/tmp/k3-trace.json", layers)
            whole[f"{label} B{batch}"] = cut
            found[f"{label} B{batch}"] = {
                "layers_us": cut["layers_us"], "mixtures": cut["mixtures"], "steps": cut["steps"],
                **{k: {n: v[n] for n in ("us", "attention_us", "kernels", "layers")} for k, v in cut["kinds"].items()},
            }  # fmt: skip
            path.with_name(path.stem + "-layers.json").write_text(json.dumps(whole))
    return found


def moe(report: Report) -> None:
    """The feed-forward slot too, on 8 layers."""
    from verify_rows import preempted

    if (lab := eight_layers(report, **WITNESSED)) is None:
        return
    report.part("stock slots are vLLM, bit by bit", lambda: stock_slots(lab, 4))
    report.part("weights", lambda: moe_layout(lab))
    for label in ("feed_forward", ALL):
        report.part(f"{label}: teacher-forced", lambda label=label: forced(lab, label))
    report.part("kernels of the captures", lambda: captured(lab))
    report.part("promises change no bit", lambda: promises(lab, ALL))
    best = ALL if "error" not in report.data[f"{ALL}: teacher-forced"] else OURS
    report.part("free tokens", lambda: free_tokens(lab, label=best))
    report.part("requests come and go", lambda: coming_and_going(lab, best))
    report.part("preempted and resumed", lambda: preempted(lab, best))
    report.part("free tokens, mix and attend", lambda: free_tokens(lab, label=OURS))


def latent(report: Report) -> None:
    """The slot of MLA layers, on 8 layers."""
    if (lab := eight_layers(report, **WITNESSED)) is None:
        return
    for label in ("attend_mla", LATENT):
        report.part(f"{label}: teacher-forced", lambda label=label: forced(lab, label))
    report.part("kernels of the captures", lambda: captured(lab))
    report.part("promises change no bit", lambda: promises(lab, LATENT))
    report.part("free tokens", lambda: free_tokens(lab, label=LATENT))
    report.part("requests come and go", lambda: coming_and_going(lab, LATENT))
    report.part("step times", lambda: step_times(lab, ("vllm", OURS, LATENT), (1, 8, 64), 60))
    report.part("layers", lambda: traced(lab, 8, ("vllm", LATENT), (1, 8, 64), report.path))


def moe_layout(lab: Any) -> dict[str, Any]:
    """How vLLM keeps the experts after loading, and what our block makes of them."""
    from runtime.engine.hopper import weights

    block = lab.decode.layers[-1].mlp
    routed = block.experts.routed_experts
    names = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
    tensors = {n: [list(getattr(routed, n).shape), str(getattr(routed, n).dtype)] for n in names}
    return {**tensors, "spec": str(weights.moe_weights(block).spec)}


def verify(report: Report) -> None:
    """Verify rows, on 8 layers with three drafts."""
    from verify_rows import DRAFTS, accepted_lengths, forced_rows

    speculation = {
        "method": "ngram",
        "num_speculative_tokens": DRAFTS,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 2,
    }
    if (lab := eight_layers(report, speculative_config=speculation)) is None:
        return
    report.part("seam", lambda: seam(lab))
    report.part("every accepted length", lambda: accepted_lengths(lab, OURS))
    report.part("verify rows, teacher-forced", lambda: forced_rows(lab, OURS))
    report.part("kernels of the captures", lambda: captured(lab))
    report.part("step times", lambda: step_times(lab, ("vllm", OURS), (1, 4, 16), 60))


def large(report: Report, layers: int, wait_for: Path | None = None) -> None:
    """The times, on a stage's layers."""
    report.part("machine", machine)
    from engine_lab import Lab
    from rank_model import write_config

    folder = write_config(Path("/tmp/k3-large"), layers=layers, block=6)
    lab = report.part("engine", lambda: Lab(str(folder), 7 << 30))
    if lab is None:
        return
    report.part("seam", lambda: seam(lab))
    report.part("captured", lambda: [lab.use(label) for label in ("vllm", OURS, ALL)] and lab.capture_s)
    report.part("waited s", lambda: waited(wait_for))
    report.part("step times", lambda: step_times(lab, ("vllm", OURS), (1, 8, 64), 60))
    report.part("step times, all slots", lambda: step_times(lab, ("vllm", ALL), (1, 8, 64), 60))
    report.part("kernels of the captures", lambda: lab.decode.kernels)
    report.part("layers", lambda: traced(lab, layers, ("vllm", OURS, ALL), (1, 8, 64), report.path))
    report.part("other sizes", lambda: step_times(lab, ("vllm", ALL), (2, 4, 16, 32), 40))
    report.part("stock slots", lambda: step_times(lab, ("vllm", "none"), (1, 8), 60))


def _run(command: list[str], log: Path, deadline: float) -> int:
    """Run a child until ``deadline`` and repeat its report lines. Its exit code, negative when it was killed."""
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, start_new_session=True)
        watchdog = threading.Timer(max(deadline - time.time(), 1), os.killpg, (child.pid, 9))
        watchdog.start()
        assert child.stdout is not None
        for line in child.stdout:
            file.write(line)
            file.flush()
            if line.startswith(b"["):
                print(log.stem, line.decode(errors="replace").rstrip(), flush=True)
        code = child.wait()
        watchdog.cancel()
        return code


def waited(path: Path | None, most_s: float = 90.0) -> float:
    """Wait until another engine on the same GPU is done, so that times are of this one alone."""
    began = time.perf_counter()
    while path is not None and not path.exists() and time.perf_counter() - began < most_s:
        time.sleep(0.2)
    return time.perf_counter() - began


def main() -> None:
    """Run the engines one after the other, or one of them (``--child``)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--engines", default="small,large")
    parser.add_argument("--layers", type=int, default=46)
    parser.add_argument(
        "--limit", type=float, default=560.0, help="seconds for everything; later parts are left out"
    )
    parser.add_argument(
        "--wait-for", type=Path, help="measure `large` only once this file exists, 90 s at most"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.child:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # vLLM inspects our model class in a process of its own
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        report = Report(a.out / f"{a.child}.json", a.deadline)
        {"small": small, "verify": verify, "moe": moe, "latent": latent}.get(
            a.child, lambda r: large(r, a.layers, a.wait_for)
        )(report)
        sys.stdout.flush()
        os._exit(0)  # vLLM's teardown may take long, and nothing is left to say
    deadline = time.time() + a.limit
    codes = []
    for engine in a.engines.split(","):
        left = deadline - time.time()
        if left < 45:
            print(f"{engine}: no time left", flush=True)
            break
        command = [sys.executable, __file__, str(a.out), "--child", engine, "--layers", str(a.layers)]
        command += ["--wait-for", str(a.wait_for)] if a.wait_for else []
        codes.append(_run([*command, "--deadline", str(deadline - 15)], a.out / f"{engine}.log", deadline))
        print(f"{engine}: exit code {codes[-1]}", flush=True)
    sys.exit(0 if codes and not any(codes) else 1)


if __name__ == "__main__":
    main()
