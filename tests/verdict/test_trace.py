"""What a profiler trace proves. The traces are synthetic: kernel names as vLLM 0.33.0's source spells them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import UsageError
from k3ctl.verdict.trace import classify, read, summarize

# the kernels of one KDA+MoE layer at TP16, batch 8: the published thirteen
LAYER = [
    "ClusterAttnRes", "SplitKGemm", "KdaSplit", "OprojFused", "WsGemm", "RouteSitu", "SplitKGemm", "RouteSitu",
    "SplitKGemm", "ExpertsKernel", "MoeTail", "L2Prefetch", "L2Prefetch",
]  # fmt: skip


def trace(steps: int, *, drop_last_kda: bool = False) -> dict[str, Any]:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]
    clock = 0.0

    def kernel(name: str, stream: int = 7) -> None:
        nonlocal clock
        full = f"kernel_cutlass_kernel_vllm_models_kimi_k3_{name}_object_at_0x7f"
        events.append(
            {"ph": "X", "cat": "kernel", "name": full, "ts": clock, "dur": 4.0, "args": {"stream": stream}}
        )
        clock += 5.0

    for _ in range(steps):
        for layer in range(93):
            mla = layer % 4 == 3 or layer == 92
            for name in LAYER:
                kernel("MlaValue" if mla and name == "KdaSplit" else name, 9 if name == "L2Prefetch" else 7)
        kernel("ClusterAttnRes")
    if drop_last_kda:
        last = max(i for i, e in enumerate(events) if "KdaSplit" in e.get("name", ""))
        del events[last]
    return {"traceEvents": events}


def write(path: Path, content: Any) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        json.dump(content, file)
    return path


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_sentinels_count_the_specialized_steps(tmp_path: Path, name: str) -> None:
    report = summarize(read(write(tmp_path / name, trace(3))))
    assert report.proves
    assert (report.steps, report.kda_sentinels, report.mla_sentinels) == (3, 3 * 69, 3 * 24)
    assert report.kernels_per_layer == pytest.approx(13, abs=0.02)
    assert report.us_per_layer == pytest.approx(65, abs=0.2)
    assert set(report.by_stream) == {"7", "9"}


def test_sentinels_that_do_not_fit_prove_nothing(tmp_path: Path) -> None:
    report = summarize(read(write(tmp_path / "t.json", trace(2, drop_last_kda=True))))
    assert not report.proves
    assert report.kernels_per_layer is None


def test_a_trace_without_gpu_kernels_proves_nothing(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 3}]
    report = summarize(read(write(tmp_path / "t.json", {"traceEvents": events})))
    assert (report.kernels, report.proves) == (0, False)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("void fused_kda_decode<12>", "KDA core"),
        ("fused_recurrent_kda_packed_decode_kernel", "KDA core"),
        ("_attn_res_kernel", "attention residuals"),
        ("kernel_cutlass_kernel_x_OprojFused_object", "o-projection and all-reduce"),
        ("kernel_cutlass_kernel_x_WaveMoeTail_object", "MoE tail"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "collectives"),
        ("nvjet_tst_64x8_64x16", "projections"),
        ("elementwise_kernel", "other"),
    ],
)
def test_a_kernel_is_put_into_its_part(name: str, part: str) -> None:
    assert classify(name) == part


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', "\x00\x01"])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="trace"):
        read(path)


def test_a_cut_gzip_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json.gz", trace(1))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UsageError, match="not a readable trace"):
        read(path)


def k3ctl(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "k3ctl", *args], capture_output=True, text=True, timeout=60)


def test_the_command_judges_a_saved_trace(tmp_path: Path) -> None:
    done = k3ctl("verify", "--trace-file", str(write(tmp_path / "t.json.gz", trace(2))))
    assert done.returncode == 0, done.stderr
    assert "proved — 2 specialized steps" in done.stdout
    assert "published 23 → 13" in done.stdout
    broken = k3ctl(
        "verify", "--trace-file", str(write(tmp_path / "b.json", trace(2, drop_last_kda=True))), "--json"
    )
    assert broken.returncode == 1
    assert json.loads(broken.stdout)["data"]["verdict"] == "not engaged"


def test_a_trace_window_needs_a_server_started_with_a_profiler() -> None:
    from k3ctl.verdict import profile

    with pytest.raises(UsageError, match="without a profiler"):
        profile.directory(("vllm", "serve", "m"))
    argv = ("vllm", "serve", "m", "--profiler-config", '{"profiler":"torch","torch_profiler_dir":"/t"}')
    assert profile.directory(argv) == Path("/t")
