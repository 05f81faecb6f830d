"""Traces built from kernels in every mixture: *proved* only where nearly all decode steps are specialized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.verdict.kernels import Kernel
from k3ctl.verdict.trace import LAYERS, MLA_LAYERS, PROVED_SHARE, statement, summarize, verdict

# names as vLLM 0.33.0's source spells them; standard ones as an H200 trace shows them
FAST_REST = [
    "OprojFused",
    "WsGemm",
    "RouteSitu",
    "SplitKGemm",
    "ExpertsKernel",
    "MoeTail",
    "ClusterAttnRes",
    "SplitKGemm",
]
SMALL_REST = [
    "OprojProducer",
    "OprojConsumer",
    "MoeFrontTP8",
    "ClusterExpertsTP8",
    "MoeSharedTP8",
    "MoeTail",
    "ClusterAttnRes",
]
DENSE_REST = [
    "OprojFused",
    "SplitKGemm",
    "DenseSitu",
    "SplitKGemm",
    "ncclDevKernel_AllReduce",
    "ClusterAttnRes",
]
STANDARD = {
    "K": [
        "_attn_res_kernel", "nvjet_sm100_tst", "_causal_conv1d_update_kernel",
        "fused_recurrent_kda_packed_decode_kernel", "layer_norm_gated_fwd_kernel", "ncclDevKernel_AllReduce",
    ],
    "M": ["_attn_res_kernel", "fused_a_gemm_kernel", "fmhaSm100f", "ncclDevKernel_AllReduce"],
}  # fmt: skip
STANDARD_REST = [
    "_attn_res_kernel",
    "vllm::moe::topk",
    "bmm_MxE4m3",
    "vllm::situ_and_mul_kernel",
    "bmm_MxE4m3",
    "LamportCopy",
]
PREFILL = {
    "K": [
        "_attn_res_kernel",
        "nvjet",
        "_causal_conv1d_fwd_kernel",
        "flash_kda_fwd",
        "layer_norm_gated_fwd_kernel",
    ],
    "M": ["_attn_res_kernel", "nvjet", "fmhaSm100f"],
}
CLOSING = ["nvjet_lm_head", "_gumbel_sample_kernel", "slot_mapping_kernel"]


def cute(name: str) -> str:
    return f"kernel_cutlass_kernel_vllm_models_kimi_k3_{name}_object_at_0x7f" if name[0].isupper() else name


def letters() -> Iterator[str]:
    for index in range(LAYERS):
        yield "M" if index in MLA_LAYERS else "K"


def specialized(rest: Sequence[str] = FAST_REST) -> list[str]:
    names = ["ClusterAttnRes", "SplitKGemm"]
    for index, letter in enumerate(letters()):
        names += [{"K": "KdaSplit", "M": "MlaValue"}[letter], *(rest if index else DENSE_REST)]
    return [*names, *CLOSING]


def bare() -> list[str]:
    return [{"K": "KdaSplit", "M": "MlaValue"}[letter] for letter in letters()]


def standard() -> list[str]:
    return [name for letter in letters() for name in (*STANDARD[letter], *STANDARD_REST)] + CLOSING


def prefill() -> list[str]:
    return [name for letter in letters() for name in (*PREFILL[letter], *STANDARD_REST)] + CLOSING


BLOCKS = {
    "specialized": specialized(),
    "small batch": specialized(SMALL_REST),
    "standard": standard(),
    "prefill": prefill(),
    "bare": bare(),
    "without experts": [n for n in specialized() if "Experts" not in n],
    "without o-projection": [n for n in specialized() if "Oproj" not in n],
    "without mixtures": [n for n in specialized() if "AttnRes" not in n],
    "one layer short": specialized()[:-12],
    "one layer standard": [*specialized()[:40], *STANDARD["K"], *specialized()[40:]],
    "draft": ["nvjet", "fmhaSm100f", "nvjet", "_gumbel_sample_kernel"] * 5,
}
FAST = {"specialized", "small batch"}
HARMLESS = {"prefill", "draft"}


def kernels(blocks: Sequence[str]) -> list[Kernel]:
    names = [cute(name) for block in blocks for name in BLOCKS[block]]
    return [Kernel(name, 5.0 * i, 4.0, "7") for i, name in enumerate(names)]


@pytest.mark.parametrize("block", sorted(BLOCKS))
@pytest.mark.parametrize("count", [1, 3, 25])
def test_only_whole_specialized_steps_prove(block: str, count: int) -> None:
    report = summarize(kernels([block] * count))
    assert (verdict([report]) == "proved") == (block in FAST)
    assert statement([report]).startswith(verdict([report]))


def test_one_specialized_step_among_a_thousand_standard_ones_is_no_proof() -> None:
    for blocks in (
        ["specialized", *["standard"] * 200],
        ["standard"] * 100 + ["specialized"] + ["standard"] * 100,
    ):
        report = summarize(kernels(blocks))
        assert verdict([report]) == "not engaged"
        assert "1 specialized decode steps beside 200 standard ones" in statement([report])


def test_specialized_steps_lost_in_other_work_are_no_proof() -> None:
    """Standard steps of a version whose kernels nobody here knows: their time tells, not their names."""
    unknown = [Kernel(f"mystery_{i % 50}", 5.0 * i, 4.0, "7") for i in range(6000)]
    end = unknown[-1].start_us + 5
    fast = [Kernel(k.name, k.start_us + end, k.duration_us, k.stream) for k in kernels(["specialized"] * 2)]
    report = summarize([*unknown, *fast])
    assert (report.steps, verdict([report])) == (2, "unknown")
    assert "of the GPU's time lies outside" in statement([report])


def test_kernels_that_take_no_time_are_counted_all_the_same() -> None:
    unknown = [Kernel(f"mystery_{i % 50}", float(i), 0.0, "7") for i in range(6000)]
    fast = [Kernel(k.name, k.start_us + 6000, k.duration_us, k.stream) for k in kernels(["specialized"] * 2)]
    assert verdict([summarize([*unknown, *fast])]) == "unknown"


@pytest.mark.parametrize("name", ["novel", "chunk_kda", "nvjet", "_gumbel_sample_kernel", "_attn_res_kernel"])
def test_kernels_that_tell_no_decode_step_refute_nothing(name: str) -> None:
    report = summarize([Kernel(name, 5.0 * i, 4.0, "7") for i in range(500)])
    assert verdict([report]) == "unknown"
    assert "no decode step that is known" in statement([report])


@pytest.mark.parametrize("name", ["KdaSplit_standard", "KdaSplitReference", "notKdaSplit2"])
def test_a_class_whose_name_only_holds_a_sentinels_is_none(name: str) -> None:
    shown = [
        Kernel(k.name.replace("KdaSplit", name), k.start_us, 4.0, "7") for k in kernels(["specialized"] * 3)
    ]
    assert verdict([summarize(shown)]) != "proved"


def test_a_part_of_a_step_says_nothing() -> None:
    report = summarize(kernels(["specialized"])[300:600])
    assert verdict([report]) == "unknown"
    assert "no whole step" in statement([report])


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.data())
def test_whatever_mixture_of_steps_a_trace_holds_proved_is_true(data: st.DataObject) -> None:
    few = data.draw(st.lists(st.sampled_from(sorted(BLOCKS)), max_size=6))
    fast = data.draw(st.lists(st.sampled_from(sorted(FAST)), max_size=24))
    blocks = data.draw(st.permutations(few + fast))
    shown = kernels(blocks)
    cut = data.draw(st.integers(0, 800))
    report = summarize(shown[cut:])
    slow = sum(block not in FAST | HARMLESS for block in blocks)
    whole = sum(block in FAST for block in blocks)
    if verdict([report]) == "proved":
        left = sum(block in FAST for block in blocks[_blocks_cut(blocks, cut) :])
        assert report.steps <= left
        broken = {"bare", "without experts", "without o-projection", "without mixtures"}
        assert not broken & set(blocks[_blocks_cut(blocks, cut) :])
        assert report.steps >= PROVED_SHARE * (report.steps + sum(b == "standard" for b in blocks)) - len(few)
    elif cut == 0 and whole and not slow and blocks.count("prefill") * 3 < whole:
        raise AssertionError(f"{whole} specialized steps alone are a proof: {statement([report])}")


def _blocks_cut(blocks: Sequence[str], cut: int) -> int:
    """How many blocks the window's late start has cut, the first of them maybe in part."""
    done = 0
    for index, block in enumerate(blocks):
        if cut <= done + 2:  # what stands before the first sentinel
            return index
        done += len(BLOCKS[block])
    return len(blocks)


@settings(max_examples=150, deadline=None, print_blob=True)
@given(st.lists(st.sampled_from(sorted({n for block in BLOCKS.values() for n in block})), max_size=400))
def test_no_soup_of_kernels_proves_a_step(names: list[str]) -> None:
    """Fewer than 93 whole layers are no step, whatever their order."""
    report = summarize([Kernel(cute(name), 5.0 * i, 4.0, "7") for i, name in enumerate(names)])
    assert verdict([report]) != "proved"


@settings(max_examples=40, deadline=None, print_blob=True)
@given(st.lists(st.lists(st.sampled_from(sorted(BLOCKS)), max_size=4), max_size=4))
def test_ranks_prove_together_only_what_each_proves_alone(ranks: list[list[str]]) -> None:
    reports: list[Any] = [summarize(kernels(blocks)) for blocks in ranks]
    if verdict(reports) == "proved":
        assert reports and all(verdict([report]) == "proved" for report in reports)
        assert len({report.steps for report in reports}) == 1


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_five_percent_of_standard_steps_are_the_limit(slow: int) -> None:
    report = summarize(kernels(["specialized"] * 20 + ["standard"] * slow))
    assert (verdict([report]) == "proved") == (slow < 2)
    if slow == 1:
        assert "beside 1 standard" in statement([report])
