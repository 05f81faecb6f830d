"""Stages of a start, read from log lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.engine.logs import LogFollower
from k3ctl.engine.stages import StageTracker, duration

START = """\
(APIServer pid=1) INFO 11-29 17:28:04 [startup.py:38]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.33.0
(APIServer pid=1) INFO 11-29 17:28:28 [model.py:744] Resolved architecture: KimiK3ForConditionalGeneration
(APIServer pid=1) WARNING 11-29 17:28:28 [vllm.py:1778] Enforce eager set, disabling torch.compile, CUDAGraphs
(EngineCore pid=2) INFO 11-29 17:28:48 [core.py:139] Initializing a V1 LLM engine (v0.33.0) with config: model='m'
(Worker_TP0 pid=3) INFO 09-20 08:01:05 [model_runner.py:399] Loading model from scratch...
(Worker_TP0 pid=3) INFO 09-20 08:01:20 [weight_utils.py:700] Loading safetensors using Fastsafetensor loader:  31% \
Completed | 30/96 [08:22<18:25, 16.75s/it]
(Worker_TP1 pid=4) INFO 09-20 08:01:21 [weight_utils.py:700] Loading safetensors using Fastsafetensor loader:  30% \
Completed | 29/96 [08:22<18:25, 16.75s/it]
(Worker_TP0 pid=3) INFO 09-20 08:07:55 [model_runner.py:429] Model loading took 199.4 GiB memory and 402.1 seconds
(APIServer pid=1) INFO 11-29 17:28:28 [model.py:744] Resolved architecture: KimiK3MTPModel
(Worker_TP0 pid=3) INFO 09-20 08:08:05 [autotuner.py:512] [AutoTuner]: Tuning x:  50%|#| 11/22 [06:15<07:51, 42.8s/p]
(EngineCore pid=2) INFO 11-29 17:29:07 [kv_cache_utils.py:1147] CPU KV cache size: 124,245 tokens
(Worker pid=3) INFO 11-29 20:54:14 [kernel_warmup.py:179] JIT kernel warmup starting.
(Worker pid=3) INFO 11-29 20:54:24 [kernel_warmup.py:100] Warming up ll_bf16 router GEMM kernels for shapes: ().
Compiling CuTeDSL kernels:   4%|▍         | 2/45 [00:00<00:20,  2.07it/s]
(Worker_TP0 pid=3) Capturing CUDA graphs (decode, FULL):  40%|####      | 6/15 [00:02<00:03,  2.8it/s]
(EngineCore pid=2) INFO 09-20 08:09:41 [core.py:402] init engine (profile, create kv cache, warmup model) took 106 s
(APIServer pid=1) INFO 09-20 08:09:44 [entry.py:140] Starting vLLM server on http://0.0.0.0:30000
"""


def test_every_stage_of_a_start_is_told_once_and_in_order():
    tracker = StageTracker()
    told = [str(stage) for at, line in enumerate(START.splitlines()) if (stage := tracker.feed(line, at))]
    assert told == [
        "starting vLLM",
        "reading the model's configuration",
        "starting the engine processes",
        "loading weights",
        "loading weights 30/96, about 18 min left",
        "weights loaded",
        "tuning kernels 11/22, about 8 min left",
        "making the cache",
        "compiling kernels",
        "compiling kernels 2/45, about 20 s left",
        "capturing CUDA graphs 6/15, about 3 s left",
        "engine ready",
        "opening the port",
    ]


def test_the_time_left_follows_the_pace_seen_here_once_there_is_one():
    tracker = StageTracker()
    tracker.feed("Loading safetensors checkpoint shards: 1/10 [00:01<99:00, 9s/it]", now=100.0)
    stage = tracker.feed("Loading safetensors checkpoint shards: 3/10 [00:01<99:00, 9s/it]", now=120.0)
    assert stage is not None and stage.eta_s == pytest.approx(70.0)


def test_a_growing_log_gives_whole_lines_only_and_progress_bars_line_by_line(tmp_path: Path):
    log = tmp_path / "engine.log"
    follower = LogFollower(log)
    assert list(follower.lines()) == []
    log.write_bytes(b"one\ntw")
    assert list(follower.lines()) == ["one"]
    with log.open("ab") as file:
        file.write(b"o\n 1/3\r 2/3\r")
    assert list(follower.lines()) == ["two", " 1/3", " 2/3"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "7 s"), (240, "4 min"), (4800, "80 min"), (9000, "2 h 30 min")]
)
def test_durations_read_like_a_person_says_them(seconds, text):
    assert duration(seconds) == text
