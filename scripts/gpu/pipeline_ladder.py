"""Kimi K3 over two pipeline stages on two GPUs: vLLM's own decode and ours, the same prompts, tokens and times.

usage: pipeline_ladder.py OUT [--layers 24] [--limit 290]

One child process per engine; each writes OUT/pp2-<name>.json after every part. Stages of TP1 have the shapes of a rank
of TP8, so this is the layout of TP8 x PP2 without its tensor-parallel sums.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]
ENGINES: dict[str, dict[str, Any]] = {"hopper": {"k3_decode": "hopper"}, "stock": {}}


def child(name: str, out: Path, layers: int) -> None:
    """Build one engine, run three batches, ask every rank's witness."""
    import torch
    from rank_model import LOAD_FORMAT, register, write_config
    from vllm import LLM, SamplingParams

    register()
    path, result = out / f"pp2-{name}.json", {"engine": name}

    def part(key: str, run: Any) -> Any:
        try:
            result[key] = run()
        except Exception:
            result[key] = {"error": traceback.format_exc()}
        path.write_text(json.dumps(result, indent=1, default=str))
        print(f"{name} {key}: {json.dumps(result[key], default=str)[:600]}", flush=True)
        return result[key]

    folder = write_config(Path(f"/tmp/k3-pp2-{name}"), layers, 6)
    began = time.perf_counter()
    llm = LLM(
        model=str(folder), skip_tokenizer_init=True, load_format=LOAD_FORMAT, max_model_len=4096, max_num_seqs=64,
        max_num_batched_tokens=4096, seed=0, kv_cache_memory_bytes=12 << 30, gpu_memory_utilization=0.95,
        pipeline_parallel_size=2, compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]},
        worker_extension_cls="runtime.witness.worker.WitnessExtension", additional_config=ENGINES[name],
    )  # fmt: skip
    part("build_s", lambda: time.perf_counter() - began)
    engine, tokens = llm.llm_engine, 48

    def batch(size: int, seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(500 + size + seed)
        prompts = [torch.randint(10, 20480, (128,), generator=generator).tolist() for _ in range(size)]
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        for i, prompt in enumerate(prompts):
            engine.add_request(f"b{size}-{seed}-{i}", {"type": "token", "prompt_token_ids": prompt}, sampling)
        found, times = {}, []
        while engine.has_unfinished_requests():
            began = time.perf_counter()
            outputs = engine.step()
            if outputs:
                times.append(time.perf_counter() - began)
            for output in outputs:
                found[output.request_id] = list(output.outputs[0].token_ids)
        steady = times[len(times) // 4 : -2]
        return {
            "tokens": [found[f"b{size}-{seed}-{i}"] for i in range(size)],
            "step_ms": statistics.median(steady) * 1e3,
        }

    for size in (1, 8, 64):
        part(f"warm {size}", lambda size=size: batch(size, 1)["step_ms"])
        part(f"B{size}", lambda size=size: batch(size, 2))
        part(f"B{size} again", lambda size=size: batch(size, 2))
    part("witness", lambda: engine.collective_rpc("k3_witness"))
    os._exit(0)


def compare(out: Path) -> dict[str, Any]:
    """Tokens and times of both engines side by side."""
    pages = {name: json.loads((out / f"pp2-{name}.json").read_text()) for name in ENGINES}
    found: dict[str, Any] = {}
    for key in ("B1", "B8", "B64"):
        rows = {name: page.get(key, {}) for name, page in pages.items()}
        if not all("tokens" in row for row in rows.values()):
            found[key] = "one of them did not run"
            continue
        pairs = list(zip(rows["hopper"]["tokens"], rows["stock"]["tokens"], strict=True))
        found[key] = {
            "equal": sum(a == b for a, b in pairs), "of": len(pairs),
            "first_differences": [next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
                                  for a, b in pairs if a != b],
            "repeats": {n: pages[n][key]["tokens"] == pages[n].get(f"{key} again", {}).get("tokens") for n in ENGINES},
            "step_ms": {name: row["step_ms"] for name, row in rows.items()},
        }  # fmt: skip
    return found


def main() -> None:
    """Run both engines, then compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--limit", type=float, default=290.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.child:
        child(a.child, a.out, a.layers)
    from serve_hopper import packages

    packages(Path("/tmp/k3-installed"))
    deadline = time.time() + a.limit
    places = ["/tmp/k3-installed", str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(places), "VLLM_PLUGINS": "k3_runtime,k3_rank",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }  # fmt: skip
    for i, name in enumerate(ENGINES):
        command = [sys.executable, __file__, str(a.out), "--child", name, "--layers", str(a.layers)]
        share = (deadline - time.time()) * (0.55 if i == 0 else 0.97)
        with (a.out / f"pp2-{name}.log").open("wb") as log:
            run = subprocess.Popen(command, stdout=None, stderr=log, env=environment, start_new_session=True)
            try:
                print(f"{name}: exit code {run.wait(timeout=max(share, 10))}", flush=True)
            except subprocess.TimeoutExpired:
                print(f"{name}: out of time after {share:.0f} s", flush=True)
        subprocess.run(["pkill", "-9", "-s", str(run.pid)], check=False)
        time.sleep(3)
    try:
        found = compare(a.out)
    except (OSError, ValueError) as error:
        found = {"error": repr(error)}
    (a.out / "pp2.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
