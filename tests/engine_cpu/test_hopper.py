"""The Hopper executor on vLLM's own Kimi K3 classes for CUDA, without a GPU (see ``hopper_case``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.engine_cpu.conftest import HERE, ROOT


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    child = subprocess.run(
        [sys.executable, HERE / "hopper_case.py"], env=env, capture_output=True, text=True, timeout=280
    )
    assert child.returncode == 0, child.stderr[-4000:]
    line = next(row for row in child.stdout.splitlines() if row.startswith("RESULT"))
    return dict(json.loads(line.removeprefix("RESULT")))


@pytest.fixture
def case(result: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """The case that a test names: ``@pytest.mark.parametrize("case", ["loops"], indirect=True)``."""
    found = dict(result[request.param])
    assert "failed" not in found, found["failed"]
    return found


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [name], indirect=True)


@of("plugin_registers")
def test_one_registration_by_name_covers_the_text_model_and_the_multimodal_wrapper(
    case: dict[str, Any],
) -> None:
    assert case == {
        "text": "runtime.engine.hopper.model:K3Hopper", "multimodal": "vllm", "resolved": "K3Hopper"
    }  # fmt: skip


# ---- refusals ---------------------------------------------------------------------------------------------

REFUSED = {
    "eager": "CUDA graphs NONE", "piecewise": "CUDA graphs PIECEWISE", "full for any mixture": "CUDA graphs FULL:",
    "half": "torch.float16: it needs bfloat16", "bf16 states": "a KDA cache other than", "sleep": "sleep mode",
    "both switches": "decode_backend beside it", "head 64": "KDA heads of 64", "taps 3": "a convolution of 3 taps",
    "no bound": "without lower bound", "hidden 640": "hidden 640 does not divide", "nine blocks": "num_blocks 9",
    "eight drafts": "more than 7 draft tokens", "blackwell": "compute capability 10.3", "another vllm": "vLLM 0.33.0",
    "no compiler": "no cutlass",
}  # fmt: skip


@of("refusals")
def test_what_can_be_served_is_not_refused(case: dict[str, Any]) -> None:
    assert [case[name] for name in ("nothing", "decode graphs only", "drafts")] == [[], [], []]


@of("refusals")
def test_what_cannot_be_served_is_refused_with_its_reason(case: dict[str, Any]) -> None:
    said = {name: [part for part in case[name] if reason in part] for name, reason in REFUSED.items()}
    assert [name for name, found in said.items() if len(found) != 1] == []


@of("refusals")
def test_all_reasons_are_said_at_once(case: dict[str, Any]) -> None:
    assert [
        word for word in ("float16", "sleep mode", "CUDA graphs NONE") if word not in str(case["several"])
    ] == []


@of("switches")
def test_without_the_switch_nothing_is_ours(case: dict[str, Any]) -> None:
    for name in ("absent", "stock"):
        assert (case[name]["wanted"], case[name]["refused"]) == (False, [])


@of("switches")
def test_the_switch_serves_the_graph_sizes_that_vllm_captures(case: dict[str, Any]) -> None:
    assert case["hopper"]["rows"] == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert case["drafts"]["rows"] == [3, 6, 9, 12, 18, 24, 33, 42, 48, 57]  # whole requests of three tokens
    assert case["slots"]["slots"] == "mix,attend@1-2"


@of("switches")
def test_auto_falls_back_and_hopper_refuses(case: dict[str, Any]) -> None:
    assert case["auto"]["wanted"]
    assert not case["auto, refused"]["wanted"]
    assert "CUDA graphs NONE" in case["auto, refused"]["refused"][0]
    said = case["hopper, refused"]
    assert said.startswith("the Hopper executor cannot serve this: ")
    assert "CUDA graphs NONE" in said
    assert "bfloat16" in said


@of("switches")
def test_unknown_values_are_refused_by_name(case: dict[str, Any]) -> None:
    assert case["unknown"] == "k3_decode must be stock, auto or hopper; got 'Hopper'"
    assert case["unknown slot"].startswith("k3_slots: unknown slot 'kda'; known are mix, attend")


@of("fallbacks")
def test_a_kernel_that_was_not_measured_here_and_weights_of_another_layout_are_refused(
    case: dict[str, Any],
) -> None:
    assert "attn_res would run triton: cute: never run on NVIDIA H100" in case["hopper fallback"]
    assert "layer 0: o_proj must be torch.bfloat16, got torch.float32" in case["hopper dtype"]
    for name in ("fallback", "dtype"):
        stock, reasons = case[f"auto {name}"]
        assert stock
        assert reasons  # and the witness has them


# ---- the loop ---------------------------------------------------------------------------------------------


@of("loops")
def test_our_loop_is_vllms_forward_bit_by_bit(case: dict[str, Any]) -> None:
    """With vLLM's slots and with our mixtures; on one stage and on both of two; with a drafter's streams."""
    assert [name for name, (equal, _) in case.items() if not equal] == []
    assert len(case) == 24


@of("loops")
def test_only_the_chosen_slots_are_ours(case: dict[str, Any]) -> None:
    calls = {
        name.removeprefix("1 stages, rank 0, aux (), "): n
        for name, (_, n) in case.items()
        if "aux ()" in name
    }
    assert [calls[name] for name in ("none", "mix", "mix@0-2", "mix@4")] == [0, 13, 6, 2]
    # over two stages of three layers the last mixture belongs to the last stage
    assert [case[f"2 stages, rank {rank}, aux (), mix"][1] for rank in (0, 1)] == [6, 7]


@of("plans")
def test_a_step_is_planned_only_while_its_decode_graph_is_captured(case: dict[str, Any]) -> None:
    planned = {name for name, (step, _) in case.items() if step}
    assert planned == {"decode", "verify", "verify padded"}
    assert len(case) == 15


@of("plans")
def test_the_witness_is_told_every_decision_of_a_capture_and_nothing_else(case: dict[str, Any]) -> None:
    assert case["not capturing"] == [False, []]
    for name, (step, told) in case.items():
        if name != "not capturing":
            assert told == [[step, "mix,attend" if step else ""]], name


# ---- weights and state ------------------------------------------------------------------------------------


@of("binding")
def test_weights_that_vllm_loaded_are_read_in_place_and_mean_the_same(case: dict[str, Any]) -> None:
    assert case["in_place"] == [True, True, True]
    assert case["error"] < 0.01  # BF16 against FP32 of the layer that loads the same names by itself
    assert case["state_error"] < 0.005
    assert case["others_untouched"]


@of("binding")
def test_a_rank_sums_over_its_group(case: dict[str, Any]) -> None:
    assert case["summed_over_the_group"]


@of("addressing")
def test_verify_rows_and_channel_first_windows_are_found_in_place(case: dict[str, Any]) -> None:
    assert case["slots"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert case["windows"] == [[9, 6, 768], True]
    assert case["slots_in_place"]
    assert case["accepted_in_place"]


# ---- what a step launches ---------------------------------------------------------------------------------

KDA_LAYER = [("attn_res", False, True), ("in_projection", False, False), ("kda_decode", True, True),
             ("o_proj", False, False), ("attn_res", True, False), ("stock feed_forward", False, False)]  # fmt: skip
STARTS_BLOCK = [*KDA_LAYER[:4], ("attn_res", False, False), KDA_LAYER[5]]
MLA_LAYER = [
    ("attn_res", False, False),
    ("stock attend", False, False),
    ("attn_res", False, False),
    KDA_LAYER[5],
]
ENTER, LAST = ("enter", False, False), ("attn_res", False, False)


def said(launches: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [(op, settled, early) for op, _, settled, early in launches]


@of("launch_lists")
def test_the_launches_of_a_whole_step(case: dict[str, Any]) -> None:
    """Six layers, blocks of three; layers 3 and 5 are MLA, layer 3 starts a block."""
    layers = [STARTS_BLOCK, KDA_LAYER, KDA_LAYER, MLA_LAYER, KDA_LAYER, MLA_LAYER]
    whole = case["rank 0 of 1, tp 1, mix,attend"]
    assert said(whole) == [ENTER, *(x for layer in layers for x in layer), LAST]


@of("launch_lists")
def test_the_launches_of_pipeline_stages_join_to_those_of_the_whole(case: dict[str, Any]) -> None:
    first, second = case["rank 0 of 2, tp 1, mix,attend"], case["rank 1 of 2, tp 1, mix,attend"]
    whole = case["rank 0 of 1, tp 1, mix,attend"]
    assert said(first) + said(second)[1:] == said(whole)
    assert said(second)[0] == ENTER
    assert LAST not in said(first)[-1:]


@of("launch_lists")
def test_over_a_group_a_sum_follows_every_output_projection(case: dict[str, Any]) -> None:
    launches = said(case["rank 0 of 1, tp 2, mix,attend"])
    after = [launches[i + 1][0] for i, x in enumerate(launches) if x[0] == "o_proj"]
    assert after == ["all_reduce"] * 4
    assert not any(settled for op, settled, _ in launches if op == "attn_res")


@of("launch_lists")
def test_the_kernels_are_bound_with_the_promises_of_their_place(case: dict[str, Any]) -> None:
    assert [name for name, found in case.items() if name.startswith("bound") and not found] == []


@of("pipeline_stream")
def test_a_pipeline_stage_waits_for_the_stream_that_will_run_it(case: dict[str, Any]) -> None:
    assert case == {"unfixed": "the default stream", "fixed": "vLLM's stream"}


# ---- the slot of MLA layers -------------------------------------------------------------------------------


@of("latent")
def test_an_mla_layer_is_ours_only_where_its_slot_is_named(case: dict[str, Any]) -> None:
    assert case["bound"] == [False, False, False, True, False, True]


@of("latent")
def test_the_weights_of_an_mla_layer_are_read_in_place_and_mean_the_same(case: dict[str, Any]) -> None:
    assert case["in_place"] == [True, True, True]
    assert max(case["errors"]) < 0.01  # BF16 against FP32 of the layer that loads the same names by itself


@of("latent")
def test_padding_requests_store_nothing(case: dict[str, Any]) -> None:
    assert case["padding_writes_nothing"]
    assert case["padding"] == [-1] * 6


@of("latent")
def test_a_step_whose_pages_are_not_all_known_is_not_planned(case: dict[str, Any]) -> None:
    assert [name for name, step in case["planned"].items() if step] == ["decode"]
    assert len(case["planned"]) == 5


@of("latent")
def test_the_core_of_an_mla_layer_may_read_its_pages_early(case: dict[str, Any]) -> None:
    """Six launches between the mixtures; its pages are settled because the absorption before it writes none."""
    ops = [op for op, _, _ in case["launches"]]
    block = ["in_projection", "mla_query", "mla_absorb", "mla_core", "mla_value", "o_proj"]
    assert ops == ["stock mix", *block, "stock mix", "stock feed_forward"]
    assert [(s, e) for op, s, e in case["launches"] if op == "mla_core"] == [(True, True)]
    assert case["promise"] == [True]


@of("latent")
def test_attention_that_is_not_k3s_is_refused_with_its_reason(case: dict[str, Any]) -> None:
    said = {
        "rotary": "rotary positions", "no gate": "no output gate", "fp8": "a fp8 cache",
        "shards": "a context shared out over ranks", "non-causal": "verify rows that see each other",
        "sizes": "sizes (512, 64, 128, 64)", "dtype": "kv_b_proj must be torch.bfloat16", "readable": "None",
    }  # fmt: skip
    assert [name for name, reason in said.items() if reason not in case["refused"][name]] == []
