"""The correctness ladder and the step times of the Hopper executor, unattended, on a GPU host.

usage: hopper_ladder.py OUT [--engines small,large] [--layers 46] [--limit 560]

Each engine is a child process that writes OUT/<engine>.json after every part (a part that fails leaves its traceback
there, and the next one runs) and its log to OUT/<engine>.log. Cheapest and most telling first:

  small   8 layers: graphs without us against our loop with vLLM's slots, bit by bit; our slots against FP64 from
          recorded inputs; our slots in graphs, teacher-forced and free; requests that come and go; step times; layers
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


# ---- small: what is right ---------------------------------------------------------------------------------


def small(report: Report) -> None:
    """The ladder, on 8 layers."""
    report.part("machine", machine)
    from engine_lab import Lab
    from rank_model import write_config

    folder = write_config(Path("/tmp/k3-small"), layers=8, block=3)
    extension = {"worker_extension_cls": "runtime.witness.worker.WitnessExtension"}
    lab = report.part("engine", lambda: Lab(str(folder), 12 << 30, **extension))
    if lab is None:
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


def relative(a: Any, reference: Any) -> float:
    """|a - reference| / |reference|."""
    return float((a.double() - reference.double()).norm() / reference.double().norm().clamp_min(1e-300))


def against_fp64(lab: Any) -> dict[str, Any]:
    """Rung 2: one layer at a time, from inputs recorded in eager vLLM steps, on copies of the state."""
    import torch

    found: dict[str, Any] = {}
    for batch in (1, 8, 64):
        recorded = record_steps(lab, batch)
        with torch.inference_mode():
            found[f"B{batch} attend"] = [attend_errors(lab, *item) for item in recorded["attend"][:3]]
            found[f"B{batch} mix"] = [mix_errors(item) for item in recorded["mix"][-8:]]
    return found


def record_steps(lab: Any, batch: int) -> dict[str, list[Any]]:
    """Inputs, states and outputs of KDA blocks and mixtures in one eager decode step of vLLM."""
    from vllm.forward_context import get_forward_context
    from vllm.models.kimi_k3.nvidia import model as vllm_model

    kept: dict[str, list[Any]] = {"attend": [], "mix": []}
    before: dict[str, Any] = {}
    hooks = []

    def decoding(module: Any) -> Any:
        metadata = (get_forward_context().attn_metadata or {}).get(module.prefix)
        return (
            metadata if metadata is not None and metadata.num_decodes and not metadata.num_prefills else None
        )

    def enter(module: Any, _args: Any, kwargs: Any) -> None:
        metadata = decoding(module)
        if metadata is None or len(kept["attend"]) >= 3:
            return
        slots = metadata.non_spec_state_indices_tensor[:batch].long()
        conv, state = module.kv_cache[:2]
        before[module.prefix] = (
            kwargs["hidden_states"].clone(),
            slots,
            conv[slots].clone(),
            state[slots].clone(),
        )

    def leave(module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
        if module.prefix not in before:
            return
        x, slots, conv, state = before.pop(module.prefix)
        now = module.kv_cache[1][slots].clone()
        kept["attend"].append(
            (module, x, conv, state, output.clone(), now, module.kv_cache[0][slots].clone())
        )

    mixture = vllm_model.attn_res

    def watched(prefix: Any, delta: Any, blocks: Any, *rest: Any, **named: Any) -> Any:
        if prefix.shape[0] != batch or len(kept["mix"]) >= 40:
            return mixture(prefix, delta, blocks, *rest, **named)
        given = (prefix.clone(), None if delta is None else delta.clone(), blocks.clone(), rest, named)
        out = mixture(prefix, delta, blocks, *rest, **named)
        kept["mix"].append((given, out.clone(), prefix.clone()))
        return out

    layers = [x.self_attn for x in lab.decode.layers if hasattr(x.self_attn, "in_proj_qkvgfab")]
    for attention in layers[-3:]:
        hooks.append(attention.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(attention.register_forward_hook(leave, with_kwargs=True))
    lab.use("vllm")
    vllm_model.attn_res = watched
    try:
        with lab.eager():
            lab.tokens(lab.prompts(batch), 4)
    finally:
        vllm_model.attn_res = mixture
        for hook in hooks:
            hook.remove()
    return kept


def attend_errors(
    lab: Any, module: Any, x: Any, conv: Any, state: Any, out: Any, after: Any, conv_after: Any
) -> Any:
    """Our KDA block and vLLM's, against the formulas in FP64."""
    import torch

    from runtime.engine.hopper import weights
    from runtime.kernels.common.launch.overlap import Overlap
    from runtime.kernels.kda.composed import kda_decode_composed
    from runtime.model.providers.kda import KdaBlock, KdaRows
    from runtime.model.step import Buffers

    w, n = weights.kda_weights(module), x.shape[0]
    first = lab.decode.channels_first

    def paged(t: Any, dtype: Any = None) -> Any:
        return torch.cat([torch.zeros_like(t[:1]), t]).to(dtype or t.dtype)

    slots = torch.arange(1, n + 1, device=x.device, dtype=torch.int32).view(n, 1)
    windows = conv.transpose(1, 2).contiguous() if first else conv
    wide_state, wide_windows = paged(state, torch.float64), paged(windows, torch.float64)
    y = torch.empty(n, w.f_b.shape[0], dtype=torch.float64, device=x.device)
    kda_decode_composed(
        x.double() @ w.in_proj.double().T, w.f_b.double(), w.conv.double(), w.A_log.double(), w.dt_bias.double(),
        w.norm.double(), wide_windows, wide_state, slots, None, y, lower_bound=w.lower_bound, eps=w.eps,
    )  # fmt: skip
    reference = y @ w.o_proj.double().T
    buffers = Buffers.allocate(n, x.shape[1], 1, w.in_proj.shape[0], w.f_b.shape[0], x.device)
    buffers.y.fill_(float("nan"))
    our_state, our_windows = paged(state), paged(windows)
    block = KdaBlock(w, Overlap())
    ours = block(x, KdaRows(our_windows, our_state, slots, None), buffers, buffers.attention)
    torch.cuda.synchronize()
    kept = conv_after.transpose(1, 2) if first else conv_after
    return {
        "ours": relative(ours, reference), "vllm": relative(out, reference),
        "ours_state": relative(our_state[1:], wide_state[1:]), "vllm_state": relative(after, wide_state[1:]),
        "windows_differ": int((our_windows[1:, :3] != kept[:, :3]).sum()), "choice": block.core.choice.variant,
        "in_proj": block.in_projection.choice(n).variant, "o_proj": block.o_proj.choice(n).variant,
    }  # fmt: skip


def mix_errors(item: Any) -> dict[str, Any]:
    """Our mixture and vLLM's, against the formulas in FP64."""
    from runtime.kernels.attn_res.dispatch import AttnRes
    from runtime.kernels.attn_res.reference import attn_res
    from runtime.kernels.attn_res.spec import AttnResSpec

    (prefix, delta, blocks, rest, named), out, prefix_after = item
    norm, vec, out_norm = (None if t is None else t.data for t in rest)
    write = None if named["block_write_idx"] < 0 else named["block_write_idx"]

    def wide(t: Any) -> Any:
        return None if t is None else t.double()

    summed = prefix if delta is None else (prefix.float() + delta.float()).to(prefix.dtype)
    reference = attn_res(
        wide(summed), None, wide(blocks), num_blocks=named["num_blocks"], write=write, score_norm=wide(norm),
        score_vec=wide(vec), eps=named["eps"], out_norm=wide(out_norm), out_eps=named["output_norm_eps"],
    ).out  # fmt: skip
    spec = AttnResSpec(
        prefix.shape[1], named["num_blocks"], write, delta is not None, out_norm is not None, named["eps"],
        named["output_norm_eps"],
    )  # fmt: skip
    operator = AttnRes(spec, norm, vec, out_norm)
    ours = prefix.new_full(prefix.shape, float("nan"))
    operator(prefix, delta, blocks, ours)
    return {
        "ours": relative(ours, reference), "vllm": relative(out, reference), "blocks": named["num_blocks"],
        "write": write, "prefix_equal": bool((prefix == prefix_after).all()), "choice": operator.choice.variant,
    }  # fmt: skip


def forced(lab: Any, label: str, steps: int = 10) -> dict[str, Any]:
    """Rung 3: the same tokens through our graphs; logits against those of vLLM, step by step."""
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


def promises(lab: Any, steps: int = 10) -> dict[str, Any]:
    """Our kernels overlapped by promises give the bits of the same kernels without."""
    found = {}
    for batch in (1, 8, 64):
        prompts = lab.prompts(batch, seed=5)
        lab.use(OURS + "/alone")
        alone = lab.logits(prompts, steps)
        lab.use(OURS)
        runs = [lab.logits(prompts, steps) for _ in range(3)]
        found[batch] = [all(bool((a == b).all()) for a, b in zip(run, alone, strict=True)) for run in runs]
    return found


def free_tokens(lab: Any, count: int = 48) -> dict[str, Any]:
    """Rung 4: greedy tokens on damped weights; the first difference of each request, if any."""
    found = {}
    for batch in (1, 8, 64):
        prompts = lab.prompts(batch, seed=9)
        lab.use("vllm")
        theirs = lab.tokens(prompts, count)
        lab.use(OURS)
        ours = lab.tokens(prompts, count)
        first = [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
            for a, b in zip(ours, theirs, strict=True)
        ]
        found[batch] = {
            "equal": sum(x is None for x in first), "of": batch,
            "first_differences": [x for x in first if x is not None],
            "distinct": len({t for row in theirs for t in row}),
        }  # fmt: skip
    return found


def coming_and_going(lab: Any) -> dict[str, Any]:
    """Rung 5: requests that arrive while others decode, of different lengths, so that prefills interleave."""

    def run() -> list[list[int]]:
        waiting = [(lab.prompts(1, 40 + 13 * i, seed=50 + i)[0], 20 + 5 * (i % 4)) for i in range(12)]
        names = [lab.add(*waiting.pop(0)) for _ in range(2)]

        def arrive(number: int, _: float) -> None:
            if waiting and number % 3 == 2:
                names.append(lab.add(*waiting.pop(0)))

        found = lab.steps(arrive)
        return [found[name] for name in names]

    lab.use("vllm")
    theirs, again = run(), run()
    lab.use(OURS)
    ours = run()
    return {
        "requests": len(theirs), "vllm_repeats": theirs == again,
        "equal": sum(a == b for a, b in zip(ours, theirs, strict=True)),
        "first_differences": [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
            for a, b in zip(ours, theirs, strict=True)
        ],
    }  # fmt: skip


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


def large(report: Report, layers: int) -> None:
    """The times, on a stage's layers."""
    report.part("machine", machine)
    from engine_lab import Lab
    from rank_model import write_config

    folder = write_config(Path("/tmp/k3-large"), layers=layers, block=6)
    lab = report.part("engine", lambda: Lab(str(folder), 14 << 30))
    if lab is None:
        return
    report.part("seam", lambda: seam(lab))
    report.part("step times", lambda: step_times(lab, ("vllm", OURS), (1, 8, 64), 60))
    report.part("layers", lambda: traced(lab, layers, ("vllm", OURS), (1, 8, 64), report.path))
    report.part("kernels of the captures", lambda: lab.decode.kernels)
    report.part("stock slots", lambda: step_times(lab, ("vllm", "none"), (1, 8), 60))
    report.part("free tokens", lambda: free_tokens(lab, 24))


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
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.child:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # vLLM inspects our model class in a process of its own
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        report = Report(a.out / f"{a.child}.json", a.deadline)
        small(report) if a.child == "small" else large(report, a.layers)
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
        codes.append(_run([*command, "--deadline", str(deadline - 15)], a.out / f"{engine}.log", deadline))
        print(f"{engine}: exit code {codes[-1]}", flush=True)
    sys.exit(0 if codes and not any(codes) else 1)


if __name__ == "__main__":
    main()
