"""Serve one rank's Kimi K3 with the Hopper executor through k3ctl, verify it, trace it, bench it, stop it.

usage: serve_hopper.py OUT [--layers 24] [--limit 280]

Writes the transcript to OUT/serve-hopper.txt and the JSON answers beside it. Needs what hopper_ladder.py needs, and
k3ctl's own packages (typer, rich, pydantic, httpx, PyYAML, psutil, nvidia-ml-py).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROFILE = """schema: 1
name: h200-rank
summary: Kimi K3 at the shapes of one rank of TP8 on one H200, random weights
status: untested
goal: latency
requires: {{gpu: [H200], gpus: 1, nodes: 1, driver: ">=580", vllm: ">=0.33.0,<0.34"}}
model: {{id: {model}, served_name: kimi-k3}}
serve:
  args:
    load_format: k3_rank
    max_model_len: 4096
    kv_cache_memory_bytes: 20000000000
    gpu_memory_utilization: 0.9
    cudagraph_capture_sizes: [1, 2, 4, 8, 16, 32, 64]
    profiler_config: {{profiler: torch, torch_profiler_dir: {traces}, ignore_frontend: true,
      torch_profiler_with_stack: false}}
  env:
    VLLM_PLUGINS: k3_runtime,k3_witness,k3_rank
decode:
  backend: hopper
  max_num_seqs: 64
  max_num_batched_tokens: 4096
expect: {{kv_sequence_tokens: 4096, kv_sequences: 16}}
bench: {{presets: [decode]}}
"""
ENTRY_POINTS = """[vllm.general_plugins]
k3_runtime = runtime.plugin:register
k3_rank = rank_model:register
[vllm.endpoint_plugins]
k3_witness = runtime.witness.endpoint:make
"""


def packages(folder: Path) -> None:
    """Entry points as an installation would bring them; the modules come from this tree."""
    info = folder / "k3ctl-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: k3ctl\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


def tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: random weights mean nothing, but the server wants to say something."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = ["<|pad|>", "<|bos|>", "<|eos|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    found = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(tokens[:3])
    found.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|pad|>", "bos_token": "<|bos|>", '
        '"eos_token": "<|eos|>", "model_max_length": 100000, "chat_template": '
        "\"{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}assistant:\"}"
    )


class Transcript:
    """Commands and what they said, on disk as they run."""

    def __init__(self, path: Path, environment: dict[str, str]) -> None:
        self.path, self.environment = path, environment
        path.write_text("")

    def run(self, *words: str, timeout_s: float, save: Path | None = None) -> int:
        """Run `k3ctl WORDS`; its output is appended, and kept apart in ``save``."""
        command = [sys.executable, "-m", "k3ctl", *words]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=self.environment,
                cwd=ROOT,
                check=False,
            )
            text, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            text, code = f"{error.stdout or b''!r}\n(no answer in {timeout_s:.0f} s)", 124
        if save is not None:
            save.write_text(text)
        with self.path.open("a") as file:
            file.write(f"$ k3ctl {' '.join(words)}\n{text[-12000:]}\n# exit code {code}\n\n")
        print(f"k3ctl {' '.join(words)[:80]}: exit code {code}", flush=True)
        return code


def main() -> None:
    """Run the sequence; every command's failure is written down and the next one runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--limit", type=float, default=280.0)
    a = parser.parse_args()
    deadline = time.time() + a.limit
    a.out.mkdir(parents=True, exist_ok=True)
    sys.path[:0] = [str(HERE), str(ROOT)]
    from rank_model import write_config

    model, traces, installed = Path("/tmp/k3-serve"), Path("/tmp/k3-traces"), Path("/tmp/k3-installed")
    write_config(model, a.layers, 3)
    tokenizer(model)
    packages(installed)
    profile = a.out / "h200-rank.yaml"
    profile.write_text(PROFILE.format(model=model, traces=traces))
    places = [str(installed), str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(places),
        "HOME": "/tmp/k3-home",
        "COLUMNS": "150",
    }
    Path("/tmp/k3-home").mkdir(exist_ok=True)
    told = Transcript(a.out / "serve-hopper.txt", environment)
    told.run("plan", str(profile), "--hardware", "H200:1", timeout_s=60)
    log = (a.out / "serve.log").open("w")
    serve = [sys.executable, "-m", "k3ctl", "serve", "-p", str(profile)]
    server = subprocess.Popen(
        serve, stdout=log, stderr=log, env=environment, cwd=ROOT, start_new_session=True
    )
    while time.time() < deadline - 90 and server.poll() is None:
        if "Ctrl-C stops it" in (a.out / "serve.log").read_text():
            break
        time.sleep(1)
    with told.path.open("a") as file:
        file.write(f"$ k3ctl serve -p {profile}\n{(a.out / 'serve.log').read_text()}\n\n")
    told.run("verify", timeout_s=60)
    told.run("verify", "--json", timeout_s=60, save=a.out / "verify.json")
    told.run("verify", "--trace", timeout_s=60)
    if time.time() < deadline - 60:
        told.run("bench", "decode", timeout_s=max(deadline - time.time() - 30, 10))
    told.run("ps", timeout_s=20)
    os.killpg(server.pid, signal.SIGINT)
    try:
        server.wait(timeout=25)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
    with told.path.open("a") as file:
        file.write((a.out / "serve.log").read_text()[-2000:])
    newest = sorted(Path("/tmp/k3-home").rglob("engine.log"))
    if newest:
        (a.out / "engine.log").write_bytes(newest[-1].read_bytes()[-600_000:])


if __name__ == "__main__":
    main()
