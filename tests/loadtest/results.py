"""Result directories as ``k3ctl bench`` leaves them, made from recorded files: no client, no server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from k3ctl.deployment import Deployment
from k3ctl.loadtest import clients, guidellm_args, workload
from k3ctl.loadtest.clients import ClientRun
from k3ctl.loadtest.scrape import Sample
from k3ctl.loadtest.target import Target

FIXTURES = Path(__file__).parents[1] / "fixtures"
TARGET = Target(
    url="http://127.0.0.1:30000",
    model="moonshotai/Kimi-K3",
    tokenizer="moonshotai/Kimi-K3",
    trust_remote_code=True,
    deployment=Deployment(
        profile="b300-tp8",
        gpu="B300",
        gpus=8,
        tensor_parallel_size=8,
        decode_backend="auto",
        num_speculative_tokens=8,
        acceptance="real",
    ),
    launch={
        "model_digest": "moonshotai/Kimi-K3@5f1c",
        "arguments": {
            "tensor_parallel_size": 8,
            "max_num_seqs": 64,
            "speculative_config": {"method": "dspark"},
        },
        "environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"},
        "versions": {"k3ctl": "0.1.0", "python": "3.12.3", "vllm": "0.33.0", "driver": "590.1"},
        "machine": "Xeon, 224 CPUs",
    },
)


SAMPLES = tuple(Sample(ts=float(t), mono=float(t), generation_tokens=100.0 * t) for t in range(1, 4))
K3_TARGET = replace(TARGET, deployment=replace(TARGET.deployment, num_speculative_tokens=7))


def make(
    directory: Path,
    report: str = "guidellm-8k1k-consistent-c4.json",
    *,
    preset: str = "8k1k",
    concurrency: tuple[int, ...] = (4,),
    target: Target = TARGET,
    samples: Sequence[Sample] = SAMPLES,
) -> Path:
    """A directory with ``raw/``, before it becomes a bundle."""
    raw = directory / "raw"
    raw.mkdir(parents=True)
    load = replace(workload.load(preset), concurrency=concurrency)
    argv = guidellm_args.argv(load, target, output="guidellm.json")
    run = ClientRun("guidellm", (), ("guidellm", *argv), "guidellm.json")
    ask = {"workload": load.as_dict(), "target": target.as_dict(), "client": "guidellm 0.8.1"}
    (raw / "ask.json").write_text(json.dumps({**ask, "runs": [clients.as_dict(run)]}))
    outcome = {
        "started_at": 1.0,
        "ended_at": 200.0,
        "statuses": [0],
        "interrupted": False,
        "server_answers": True,
    }
    (raw / "outcome.json").write_text(json.dumps(outcome))
    shutil.copy(FIXTURES / report, raw / "guidellm.json")
    shutil.copy(FIXTURES / "bench-events-cpu-tiny.jsonl", raw / "events.jsonl")
    (raw / "samples.jsonl").write_text("".join(sample.as_json() + "\n" for sample in samples))
    return directory
