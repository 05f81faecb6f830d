"""The runtime's own decode path in a trace, from layers that were traced on an H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3ctl.verdict import trace
from k3ctl.verdict.kernels import Kernel
from k3ctl.verdict.own_path import own_path

LAYERS = json.loads((Path(__file__).parents[1] / "fixtures" / "trace-h200-hopper-layers.json").read_text())[
    "layers"
]
CUTE = "kernel_cutlass_kernel_runtimekernelscute_kernel{}_object_at__tensorptrbf16"
OURS = ("AttnResCluster", "SkinnyGemmKernel", "KdaDecodeKernel", "KdaStreamKernel")
STEP = ["KDA + dense", "KDA + MoE", "KDA + MoE", "MLA + MoE", "KDA + MoE", "MLA + MoE"]


def kernels(run: str, steps: int = 3, kinds: list[str] | None = None) -> list[Kernel]:
    """Decode steps made of a run's traced layers, each closed by a mixture; names as the profiler writes them."""
    found, clock = [], 0.0
    for _ in range(steps):
        for kind in kinds or STEP:
            layer = LAYERS[run][kind]
            for name, start, us, stream in layer:
                found.append(
                    Kernel(CUTE.format(name) if name in OURS else name, clock + start, us, str(stream))
                )
            clock += max(start + us for _, start, us, _ in layer)
        closing = "AttnResCluster" if "mix" in run else "_attn_res_kernel"
        found.append(Kernel(CUTE.format(closing) if closing in OURS else closing, clock, 4.0, "7"))
        clock += 40.0
    return sorted(found, key=lambda kernel: kernel.start_us)


@pytest.mark.parametrize("run", ["mix,attend B1", "mix,attend B8", "mix,attend B64"])
def test_steps_of_our_path_are_proved_by_their_kda_layers(run: str) -> None:
    report = trace.summarize(kernels(run))
    assert (report.own.own, report.own.standard, report.own.bare) == (12, 0, 0)
    assert trace.verdict([report]) == "proved"
    assert trace.statement([report]).startswith(
        "proved — 12 of 12 KDA layers of the decode steps ran our kernel"
    )
    assert trace.as_data(report)["own_kda_layers"] == 12


@pytest.mark.parametrize("run", ["vllm B1", "vllm B8"])
def test_vllms_own_steps_prove_nothing(run: str) -> None:
    report = trace.summarize(kernels(run))
    assert (report.own.own, report.own.standard) == (0, 12)
    assert trace.verdict([report]) == "not engaged"


def test_a_stage_without_the_dense_layer_counts_too() -> None:
    report = trace.summarize(kernels("mix,attend B8", kinds=["KDA + MoE", "MLA + MoE"]))
    assert report.own.own == 3
    assert report.own.proves


def test_steps_of_both_kinds_are_not_engaged() -> None:
    ours, theirs = kernels("mix,attend B1", 2), kernels("vllm B1", 1)
    later = [Kernel(k.name, k.start_us + 10_000, k.duration_us, k.stream) for k in theirs]
    report = trace.summarize([*ours, *later])
    assert (report.own.own, report.own.standard) == (8, 4)
    assert trace.verdict([report]) == "not engaged"
    assert "8 of 12 KDA layers" in trace.statement([report])


def test_one_rank_on_our_path_does_not_speak_for_another() -> None:
    reports = [trace.summarize(kernels("mix,attend B1")), trace.summarize(kernels("vllm B1"))]
    assert trace.verdict(reports) == "not engaged"


def test_sentinels_outside_of_layers_prove_nothing() -> None:
    name = CUTE.format("KdaDecodeKernel")
    report = trace.summarize([Kernel(name, 10.0 * i, 5.0, "7") for i in range(200)])
    assert report.own.own == 0
    assert trace.verdict([report]) == "unknown"
    assert "without the rest of their layer" in own_text(report)


def own_text(report: trace.TraceReport) -> str:
    return trace.statement([report])


def test_a_doubled_sentinel_in_a_layer_is_no_layer() -> None:
    found = kernels("mix,attend B1")
    doubled = next(i for i, k in enumerate(found) if "KdaDecode" in k.name and i > 30)
    extra = Kernel(found[doubled].name, found[doubled].start_us + 0.5, 1.0, "7")
    report = own_path(sorted([*found, extra], key=lambda k: k.start_us))
    assert report.bare == 2
    assert not report.proves


def test_a_window_that_cuts_its_first_and_last_layer_still_proves() -> None:
    found = kernels("mix,attend B8")
    assert own_path(found[2:-4]).proves


def test_an_empty_trace_has_nothing() -> None:
    assert own_path([]).own == 0
    assert not own_path([]).proves
