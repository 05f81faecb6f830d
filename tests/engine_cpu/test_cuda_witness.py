"""The witness of vLLM's in-tree specialized decode, on vLLM's real modules (no GPU: nothing is computed)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.engine_cpu.conftest import HERE, ROOT


@pytest.fixture(scope="module")
def result() -> dict:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    child = subprocess.run(
        [sys.executable, HERE / "cuda_witness_case.py"], env=env, capture_output=True, text=True, timeout=200
    )
    assert child.returncode == 0, child.stderr[-4000:]
    line = next(row for row in child.stdout.splitlines() if row.startswith("RESULT"))
    return dict(json.loads(line.removeprefix("RESULT")))


def test_each_step_gets_the_path_of_its_graph_or_the_reason(result: dict) -> None:
    steps = {
        (s["path"], s["kind"], s["mode"], s["reason"]): (s["steps"], s["rows"], s["tokens"])
        for s in result["page"]["steps"]
    }
    assert steps == {
        ("specialized", "decode", "full", ""): (3, 10, 80),
        ("standard", "decode", "full", "rows-over-limit"): (2, 11, 272),
        ("standard", "mixed", "full", "prefill-in-batch"): (2, 4, 400),
        ("standard", "prefill", "full", "prefill-in-batch"): (1, 2, 200),
        ("standard", "decode", "full", "graph-not-specialized"): (2, 11, 72),
        ("standard", "mixed", "piecewise", "prefill-in-batch"): (1, 3, 40),
        ("standard", "prefill", "eager", "prefill-in-batch"): (1, 1, 400),
        ("standard", "decode", "piecewise", "query-length-not-uniform"): (1, 2, 12),
    }


def test_the_page_says_who_counts(result: dict) -> None:
    page = result["page"]
    assert (page["platform"], page["rank"], page["query_len"]) == ("cuda", 2, 8)
    assert page["decode_backend"] == "latency_specialized"
    assert page["known_build"] is True
    assert page["unavailable"] == []


def test_a_deployment_that_cannot_have_the_path_says_so_in_vllms_words(result: dict) -> None:
    assert result["unavailable"] == [
        "vLLM's specialized decode does not support this GPU (it needs SM100 or SM103)"
    ]


def test_a_step_of_an_unknown_shape_is_not_raised_and_ends_the_claim_of_a_known_build(result: dict) -> None:
    assert result["known_after_fault"] is False


def test_counting_costs_far_less_than_a_step(result: dict) -> None:
    """A sanity bound with slack for a busy machine; the measured figure is in docs/log.md."""
    assert result["step_ns"] < 20_000


def test_requests_made_up_while_starting_are_known_by_vllms_own_names(result: dict) -> None:
    assert result["warm_up_names_are_vllms"]


def test_a_seam_with_other_parameters_is_refused_when_the_worker_starts(result: dict) -> None:
    assert result["foreign_seam"] == "prepare_inputs takes self, batch"
