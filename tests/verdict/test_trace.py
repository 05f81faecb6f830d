"""What a profiler trace proves. The traces are synthetic: kernel names as vLLM 0.33.0's source spells them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import UsageError
from k3ctl.verdict.kernels import Kernel, classify, read
from k3ctl.verdict.trace import statement, summarize, verdict
from tests.in_process import k3ctl

# the kernels of one KDA+MoE layer at TP16, batch 8: the published thirteen
LAYER = [
    "ClusterAttnRes", "SplitKGemm", "KdaSplit", "OprojFused", "WsGemm", "RouteSitu", "SplitKGemm", "RouteSitu",
    "SplitKGemm", "ExpertsKernel", "MoeTail", "L2Prefetch", "L2Prefetch",
]  # fmt: skip


def trace(steps: int, *, drop_last_kda: bool = False, lost: int = 0) -> dict[str, Any]:
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
    del events[1 : 1 + lost]
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


@pytest.mark.parametrize("lost", [1, 7, 13 * 50, 13 * 92 + 5])
def test_a_step_that_the_window_cut_does_not_spoil_the_whole_ones(tmp_path: Path, lost: int) -> None:
    report = summarize(read(write(tmp_path / "t.json", trace(3, lost=lost))))
    assert report.proves
    assert report.steps == (3 if lost == 1 else 2)
    assert report.kernels_per_layer == pytest.approx(13, abs=0.02)


def test_a_trace_without_gpu_kernels_proves_nothing(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 3}]
    report = summarize(read(write(tmp_path / "t.json", {"traceEvents": events})))
    assert (report.kernels, report.proves) == (0, False)
    assert verdict([report]) == "unknown"
    assert "no GPU kernels" in statement([report])


def test_a_rank_without_kernels_is_no_proof_of_the_others(tmp_path: Path) -> None:
    rank = summarize(read(write(tmp_path / "t.json", trace(2))))
    assert verdict([rank, rank]) == "proved"
    assert verdict([summarize([]), rank]) == "unknown"
    assert "1 of 2 ranks hold no GPU kernels" in statement([summarize([]), rank])
    assert verdict([rank, summarize(read(write(tmp_path / "u.json", trace(3))))]) == "unknown"
    assert verdict([]) == "unknown"


def test_the_front_ends_own_trace_is_set_aside_by_its_name(tmp_path: Path) -> None:
    from k3ctl.commands.verify import traced

    files = [
        write(tmp_path / "host_7.async_llm.1.json", {"traceEvents": []}),
        write(tmp_path / "r.json", trace(2)),
    ]
    assert traced(files).data["verdict"] == "proved"
    assert traced(files[:1]).data["verdict"] == "unknown"


def test_a_standard_step_is_cut_into_its_layers_by_kind_and_stream() -> None:
    half = {
        "KDA": ["_attn_res_kernel", "kda_decode_fusion_many_heads_kernel", "nvjet_sm90_tst"],
        "MLA": ["_attn_res_kernel", "void cutlass::device_kernel<flash::FlashAttnFwdSm90<1>>"],
        "MoE": ["_attn_res_kernel", "humming<1>", "nvjet_side"],
        "dense": ["_attn_res_kernel", "vllm::situ_and_mul_kernel"],
    }
    step = ["KDA", "dense", "KDA", "MoE", "KDA", "MoE", "MLA", "MoE"]
    names = [name for part in step * 2 for name in half[part]]
    closing = ["_attn_res_kernel", "nvjet_lm_head", "_gumbel_sample_kernel"]
    names = (names[: len(names) // 2] + closing) * 2
    kernels = [
        Kernel(name, 10.0 * i, 9.0, "13" if name == "nvjet_side" else "7") for i, name in enumerate(names)
    ]
    report = summarize(kernels)
    assert [(k.name, k.layers, k.kernels, k.us) for k in report.layers] == [
        ("KDA + MoE", 4, 6, 60.0),
        ("KDA + dense", 2, 5, 50.0),
        ("MLA + MoE", 2, 5, 50.0),
    ]
    assert [(k.streams, k.kernel_us) for k in report.layers] == [(2, 54.0), (1, 45.0), (2, 45.0)]
    assert "6 kernels and takes 60.0 µs" in statement([report])


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
        ("void kda_decode_fusion_many_heads_kernel<12>", "KDA core"),
        ("vllm::kimi_k3_fused_ops::fusedKimiK3MLADecodeQConcatKVCacheKernel", "MLA core"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>", "MLA core"),
        ("vllm::moe::moe_align_block_size_kernel", "router and latent"),
        ("vllm::moe::single_group_topk::detail::single_group_topk_block_kernel", "router and latent"),
        ("kernel_cutlass_kernel_vllmopsll_bf16LLBf16Dotprod_object_at_0x7f", "router and latent"),
        ("moe_fused_mul_sum_kernel", "routed experts"),
        ("kernel_cutlass_kernel_vllm_models_kimi_k3_kda_decode_KdaSkinnyNGemm_object_at_0x7f", "projections"),
        ("fused_a_gemm_kernel<1, 1536, 128, 16, 8, 128, 1>", "projections"),
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


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_trace_that_holds_too_much_is_refused_packed_or_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / name, trace(1))
    assert read(path)
    text = json.dumps(trace(1))
    monkeypatch.setattr("k3ctl.verdict.kernels.MAX_BYTES", len(text) - 1)
    assert name == "t.json" or path.stat().st_size < len(text) / 10, "small on the disk"
    with pytest.raises(UsageError, match="holds more than"):
        read(path)


RECORDED = Path(__file__).parent.parent / "fixtures"


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        # cut inside a step at both ends; 18 KDA and 6 MLA layers, the first with a dense MLP
        (
            "trace-h200-tp8-rank-24-layers.json.gz",
            2,
            {"KDA + MoE": (23, 147.6), "MLA + MoE": (29, 157.8), "KDA + dense": (10, 100.7)},
        ),
        # what `verify --trace` took from a server of four layers: eight whole steps
        (
            "trace-h200-window-4-layers.json.gz",
            8,
            {"KDA + MoE": (23, 144.9), "MLA + MoE": (29, 151.9), "KDA + dense": (10, 98.9)},
        ),
    ],
)
def test_a_recorded_standard_step_of_an_h200_is_cut_into_its_layers(
    name: str, steps: int, expected: dict[str, tuple[int, float]]
) -> None:
    """One rank of TP8 at batch 1, vLLM 0.33.0 with random weights; names and times as the profiler wrote them."""
    kernels = read(RECORDED / name)
    report = summarize(kernels)
    assert verdict([report]) == "not engaged"
    assert {k.name: (k.kernels, round(k.us, 1)) for k in report.layers} == expected
    assert {k.name for k in report.layers if k.streams > 1} == set(expected)
    assert all(k.kernel_us > k.us for k in report.layers)
    # every sampler closes one step
    assert sum("_gumbel_sample" in k.name for k in kernels) in (steps, steps + 1)
    unknown = report.by_part["other"][1] / sum(us for _, us in report.by_part.values())
    assert unknown < 0.04


def test_the_command_judges_a_saved_trace(tmp_path: Path) -> None:
    done = k3ctl("verify", "--trace-file", str(write(tmp_path / "t.json.gz", trace(2))))
    assert done.returncode == 0, done.stderr
    assert "proved — 2 specialized steps" in done.stdout
    assert "published 23 → 13" in done.stdout
    broken = k3ctl(
        "verify", "--trace-file", str(write(tmp_path / "b.json", trace(2, drop_last_kda=True))), "--json"
    )
    assert broken.returncode == 1
    assert json.loads(broken.stdout)["data"]["verdict"] == "unknown"


def test_a_trace_window_needs_a_server_started_with_a_profiler() -> None:
    from k3ctl import deployment
    from k3ctl.verdict import profiler

    with pytest.raises(UsageError, match="without a profiler"):
        profiler.directory(deployment.UNKNOWN)
    assert profiler.directory(deployment.Deployment(traces="/t")) == Path("/t")
