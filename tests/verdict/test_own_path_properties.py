"""The runtime's own path on Hopper among other kernels, known and unknown: *proved* only where nearly all is ours."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_own_path import kernels as traced

from k3ctl.verdict import trace
from k3ctl.verdict.kernels import Kernel
from k3ctl.verdict.own_path import own_path

STEP = ["KDA + dense", *["KDA + MoE", "KDA + MoE", "KDA + MoE", "MLA + MoE"] * 2, "MLA + MoE"]
KDA_LAYERS = 7
OURS = traced("mix,attend B8", 1, STEP)
THEIRS = traced("vllm B8", 1, STEP)


def renamed(step: list[Kernel], *words: str) -> list[Kernel]:
    """The same step of a version that calls some of its kernels otherwise."""
    return [
        Kernel(f"novel_{len(k.name)}", k.start_us, k.duration_us, k.stream)
        if any(word in k.name for word in words)
        else k
        for k in step
    ]


def without(step: list[Kernel], *words: str) -> list[Kernel]:
    return [k for k in step if not any(word in k.name for word in words)]


NEW = renamed(THEIRS, "kda_decode")
BLOCKS = {
    "ours": OURS,
    "large batches": traced("mix,attend B64", 1, STEP),
    "theirs": THEIRS,
    "KDA of a new name": NEW,
    "MLA of a new name too": renamed(NEW, "MLA", "sigmoid", "device_kernel"),
    "experts of a new name too": renamed(NEW, "humming", "process_input", "moe_", "situ"),
    "all of new names": [Kernel(f"novel_{i % 40}", k.start_us, k.duration_us, "7") for i, k in enumerate(THEIRS)],
    "ours without experts": without(OURS, "humming", "process_input", "moe_", "situ"),
    "ours without projections": without(OURS, "Gemm", "nvjet", "cublas", "fused_a", "device_kernel"),
    "ours without mixtures": without(OURS, "AttnResCluster"),
    "sentinels alone": [k for k in OURS if "KdaDecode" in k.name],
}  # fmt: skip
FINE = {"ours", "large batches"}


def kernels(*blocks: str | list[Kernel]) -> list[Kernel]:
    """One block after the other on one clock."""
    shown: list[Kernel] = []
    clock = 0.0
    for block in blocks:
        step = BLOCKS[block] if isinstance(block, str) else block
        shown += [Kernel(k.name, clock + k.start_us, k.duration_us, k.stream) for k in step]
        clock += max((k.start_us + k.duration_us for k in step), default=0.0) + 10.0
    return sorted(shown, key=lambda kernel: kernel.start_us)


@functools.cache
def summary_of(block: str) -> trace.TraceReport:
    return trace.summarize(kernels(block))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("count", [1, 12])
def test_only_whole_steps_of_ours_prove(block: str, count: int) -> None:
    report = trace.summarize(kernels(*[block] * count))
    assert (trace.verdict([report]) == "proved") == (block in FINE)
    assert trace.statement([report]).startswith(trace.verdict([report]))


@pytest.mark.parametrize("beside", [name for name in BLOCKS if name not in FINE])
@pytest.mark.parametrize("place", ["before", "after", "around"])
def test_one_step_of_ours_among_others_is_no_proof(beside: str, place: str) -> None:
    """Whatever the others' kernels are called: a layer of ours says nothing about theirs."""
    before = {"before": 0, "after": 20, "around": 10}[place]
    shown = kernels(*[beside] * before, "ours", *[beside] * (20 - before))
    assert trace.verdict([trace.summarize(shown)]) == ("not engaged" if beside == "theirs" else "unknown")


def test_one_layer_of_ours_among_unknown_kernels_is_no_proof() -> None:
    layer = traced("mix,attend B8", 1, ["KDA + MoE"])
    for unknown in (
        [Kernel(f"novel_{i}", 5.0 * i, 4.0, "7") for i in range(2000)],
        [Kernel(f"novel_{i}", float(i), 0.0, "7") for i in range(2000)],
    ):
        report = trace.summarize(kernels(unknown, layer, unknown))
        assert (report.own.own, trace.verdict([report])) == (1, "unknown")
        assert "lies outside" in trace.statement([report])


@pytest.mark.parametrize(("mla", "answer"), [(1, "proved"), (2, "proved"), (40, "unknown")])
def test_mla_layers_are_vouched_for_by_the_kda_layers_beside_them_only(mla: int, answer: str) -> None:
    shown = traced("mix,attend B8", 3, ["KDA + MoE", *["MLA + MoE"] * mla])
    assert trace.verdict([trace.summarize(shown)]) == answer


@pytest.mark.parametrize("others", range(4))
def test_five_percent_of_layers_that_nobody_knows_are_the_limit(others: int) -> None:
    report = trace.summarize(kernels(*["ours"] * 40, *["KDA of a new name"] * others))
    assert report.own.unknown == KDA_LAYERS * others
    assert (trace.verdict([report]) == "proved") == (others <= 2)


@settings(max_examples=25, deadline=None, print_blob=True)
@given(st.data())
def test_whatever_mixture_of_steps_a_trace_holds_proved_is_true(data: st.DataObject) -> None:
    few = data.draw(st.lists(st.sampled_from(sorted(BLOCKS)), max_size=3))
    fine = data.draw(st.lists(st.sampled_from(sorted(FINE)), max_size=12))
    blocks = data.draw(st.permutations(few + fine))
    report = trace.summarize(kernels(*blocks))
    good, bad = (
        sum(block in FINE for block in blocks),
        sum(block not in FINE | {"all of new names"} for block in blocks),
    )
    proved = trace.verdict([report]) == "proved"
    assert report.own.own <= KDA_LAYERS * (good + bad)
    if proved:
        assert good >= 0.95 * (good + bad) - 1e-9
        assert good >= sum(block == "all of new names" for block in blocks)
    elif good and good == len(blocks):
        raise AssertionError(f"steps of ours alone are a proof: {trace.statement([report])}")


@settings(max_examples=25, deadline=None, print_blob=True)
@given(st.data())
def test_taking_kernels_away_or_renaming_them_never_adds_a_layer(data: st.DataObject) -> None:
    shown = kernels("ours", "theirs", "ours")
    whole = own_path(shown)
    chosen = data.draw(st.sets(st.integers(0, len(shown) - 1), max_size=30))
    rename = data.draw(st.booleans())
    changed = [
        Kernel("novel", k.start_us, k.duration_us, k.stream) if i in chosen else k
        for i, k in enumerate(shown)
        if rename or i not in chosen
    ]
    less = own_path(changed)
    assert less.own <= whole.own
    assert not less.proves


@settings(max_examples=50, deadline=None, print_blob=True)
@given(st.lists(st.sampled_from(sorted({k.name for block in BLOCKS.values() for k in block})), max_size=300))
def test_a_soup_of_kernels_proves_no_more_layers_than_it_holds(names: list[str]) -> None:
    report = own_path([Kernel(name, 5.0 * i, 4.0, "7") for i, name in enumerate(names)])
    mixtures = sum("AttnRes" in name or "attn_res" in name for name in names)
    assert report.own <= max(0, mixtures - 1) / 2
    if report.proves:
        assert report.outside <= 0.5 and report.share >= 0.95


@given(
    st.lists(
        st.sampled_from(["ours", "theirs", "KDA of a new name", "all of new names"]), min_size=1, max_size=4
    )
)
def test_ranks_prove_together_only_what_each_proves_alone(ranks: list[str]) -> None:
    reports = [summary_of(block) for block in ranks]
    together = trace.verdict(reports)
    assert (together == "proved") == all(block == "ours" for block in ranks)
    if "ours" in ranks and "theirs" not in ranks:
        assert together != "not engaged"
