"""The witness of specialized paths on CUDA graphs: vLLM's own managers, runners and model, on a faked stream.

Nothing here tells the witness what was decided: vLLM's ``capture`` and ``execute_model`` do, as on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.engine_cpu.conftest import HERE, ROOT

SPECIALIZED = "specialized decode full"
NO_GRAPH = "standard decode eager graph-not-specialized"
STOCK_GRAPH = "standard decode full graph-not-specialized"
PREFILL = "standard prefill eager prefill-in-batch"
MIXED = "standard mixed eager prefill-in-batch"
OVER = "standard decode full rows-over-limit"


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    child = subprocess.run(
        [sys.executable, HERE / "cuda_witness_case.py"], env=env, capture_output=True, text=True, timeout=280
    )
    assert child.returncode == 0, child.stderr[-4000:]
    line = next(row for row in child.stdout.splitlines() if row.startswith("RESULT"))
    return dict(json.loads(line.removeprefix("RESULT")))


def test_every_size_that_was_captured_specialized_counts_as_such_also_after_eager_steps(seen: dict) -> None:
    """A warm-up before each capture, largest first; then a prefill, a dummy step and a mixed one between decodes."""
    assert seen["serving"] == {
        "steps": {SPECIALIZED: [9, 144 + 1, 145], OVER: [1, 100, 100], PREFILL: [1, 1, 5], MIXED: [1, 2, 41]},
        "graphs": [1, 2, 4, 8, 16, 32, 64],
    }


def test_verify_steps_are_specialized_where_all_requests_carry_the_same_drafts(seen: dict) -> None:
    assert seen["verify_steps"] == {
        "steps": {
            SPECIALIZED: [2, 9, 72],
            OVER: [1, 9, 72],
            PREFILL: [1, 1, 5],
            "standard decode eager query-length-not-uniform": [1, 2, 14],
        },
        "graphs": [8, 16, 32, 64],
    }


def test_a_drafter_captured_afterwards_changes_nothing(seen: dict) -> None:
    assert seen["drafter"] == {"steps": {SPECIALIZED: [3, 67, 67]}, "equal descriptors": 7}


def test_graphs_that_are_captured_again_are_counted_by_what_they_hold_then(seen: dict) -> None:
    once = [1, 4, 4]
    assert seen["released"] == {
        "captured": {SPECIALIZED: once},
        "released": {SPECIALIZED: once, NO_GRAPH: once},
        "stock": {SPECIALIZED: once, NO_GRAPH: once, STOCK_GRAPH: once},
        "again": {SPECIALIZED: [2, 8, 8], NO_GRAPH: once, STOCK_GRAPH: once},
    }


def test_what_profiling_captured_says_nothing_about_the_graphs_that_serve(seen: dict) -> None:
    assert seen["profiled"] == {
        "steps": {SPECIALIZED: [1, 1, 1], STOCK_GRAPH: [1, 64, 64]},
        "graphs": [[32, 64], [1]],
    }


def test_piecewise_captures_do_not_touch_the_full_graphs(seen: dict) -> None:
    assert seen["piecewise"]["steps"] == {
        SPECIALIZED: [4, 18, 18],
        "standard mixed piecewise prefill-in-batch": [1, 2, 41],
        PREFILL: [1, 1, 300],
    }


def test_a_graph_for_any_mixture_is_asked_at_every_step_what_it_holds(seen: dict) -> None:
    assert seen["any_mixture"]["steps"] == {
        "standard mixed full prefill-in-batch": [2, 4, 83],
        "standard prefill full prefill-in-batch": [1, 2, 81],
        "standard decode eager rows-over-limit": [1, 65, 65],
    }


def test_pipeline_stages_are_counted_each_by_its_own_graphs(seen: dict) -> None:
    """vLLM's plan gives up on inputs from another stage; the disagreement stays visible."""
    own = {"specialized decode full all": [1, 1, 1], "specialized decode full attn_res,kda": [1, 2, 2]}
    assert seen["stages"] == {
        "vllm 0": {SPECIALIZED: [2, 3, 3], PREFILL: [1, 1, 5]},
        "vllm 1": {STOCK_GRAPH: [2, 3, 3], PREFILL: [1, 1, 5]},
        "own 0": {**own, PREFILL: [1, 1, 5]},
        "own 1": {**own, PREFILL: [1, 1, 5]},
    }


def test_an_executor_of_ours_says_which_slots_are_its_own_and_how_many_kernels_a_layer_has(
    seen: dict,
) -> None:
    own = seen["own_executor"]
    assert own["backend"] == "hopper"
    assert own["steps"] == {
        "specialized decode full all": [1, 1, 1],
        "specialized decode full attn_res,kda": [2, 16, 16],
        STOCK_GRAPH: [1, 16, 16],
        PREFILL: [1, 1, 5],
    }
    assert [(g["tokens"], g["requests"], g["slots"], g["kernels"]) for g in own["graphs"]] == [
        (1, 1, "all", {"KDA + MoE": 12.0}),
        (2, 2, "attn_res,kda", {"KDA + MoE": 12.0}),
        (8, 8, "attn_res,kda", {"KDA + MoE": 12.0}),
    ]


def test_steps_of_the_v1_runner_are_counted_by_its_own_graphs(seen: dict) -> None:
    rest = {"standard decode eager rows-over-limit": [1, 65, 65], PREFILL: [1, 1, 5], MIXED: [1, 2, 8]}
    assert seen["v1_runner"] == {
        "steps": {SPECIALIZED: [2, 4, 4], **rest},
        "captured again": {SPECIALIZED: [2, 4, 4], STOCK_GRAPH: [2, 2, 2], **rest},
    }


def test_every_seam_is_needed(seen: dict) -> None:
    assert len(seen["without"]) == 4
    for seam, scenarios in seen["without"].items():
        assert any(found != seen[name] for name, found in scenarios.items()), f"nothing counts by {seam}"


def test_the_page_says_who_counts(seen: dict) -> None:
    page = seen["facts"]["page"]
    assert (page["platform"], page["rank"], page["workers"], page["query_len"]) == ("cuda", 2, 8, 8)
    assert page["decode_backend"] == "latency_specialized"
    assert page["known_build"] is True
    assert page["unavailable"] == []


def test_a_deployment_that_cannot_have_the_path_says_so_in_vllms_words(seen: dict) -> None:
    facts = seen["facts"]
    assert facts["unavailable"] == [
        "vLLM's specialized decode does not support this GPU (it needs SM100 or SM103)"
    ]
    assert facts["plan is left alone where vLLM refuses"]


def test_a_step_of_an_unknown_shape_is_not_raised_and_ends_the_claim_of_a_known_build(seen: dict) -> None:
    assert seen["facts"]["known_after_fault"] is False


def test_counting_costs_far_less_than_a_step(seen: dict) -> None:
    """A sanity bound with slack for a busy machine; the measured figure is in docs/log.md."""
    assert seen["facts"]["step_ns"] < 20_000


def test_requests_made_up_while_starting_are_known_by_vllms_own_names(seen: dict) -> None:
    assert seen["facts"]["warm_up_names_are_vllms"]
    assert seen["facts"]["parameters_are_vllms"]


def test_a_seam_with_other_parameters_is_refused_when_the_worker_starts(seen: dict) -> None:
    assert seen["facts"]["foreign_seams"] == ["seam takes self, batch"] * 2
