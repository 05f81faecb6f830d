"""The engine's whole distributions against the oracle, which shares no code with it: cpu-tiny, and an odder model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.model.config import TINY, K3Config
from runtime.model.weights import seeded_weights
from tests.engine_cpu.conftest import prompts
from tests.model.oracle import Oracle, log_softmax
from tests.model.small_models import arrays

TOLERANCE = 1e-4  # of log probabilities down to -25, FP32 (seen: 1.6e-5)
CLEAR_CHOICE = 5e-6  # experts chosen by less may differ by rounding
SPECIALIZED = {"decode_backend": "latency_specialized"}
MTP = {"method": "mtp", "num_speculative_tokens": 3}
ODD = replace(
    TINY,
    num_hidden_layers=7,
    kda_layers=frozenset({1, 2, 4}),
    attn_res_block_size=3,
    kda_num_heads=2,
    kda_head_dim=16,
    gate_lower_bound=-2.0,
    num_attention_heads=6,
    q_lora_rank=40,
    kv_lora_rank=48,
    qk_nope_head_dim=24,
    qk_rope_head_dim=8,
    v_head_dim=20,
    first_k_dense_replace=2,
    num_experts=10,
    num_experts_per_token=3,
    moe_intermediate_size=96,
    routed_expert_hidden_size=64,
    num_shared_experts=2,
    routed_scaling_factor=2.6,
    rms_norm_eps=1e-2,
    num_nextn_predict_layers=0,
)
CASES = {
    "cpu-tiny, standard": (TINY, {}),
    "cpu-tiny, specialized": (TINY, {"additional_config": SPECIALIZED}),
    "cpu-tiny, specialized, mtp": (TINY, {"additional_config": SPECIALIZED, "speculative_config": MTP}),
    "odd, standard": (ODD, {}),
    "odd, specialized": (ODD, {"additional_config": SPECIALIZED}),
}
QUICK = {"cpu-tiny, specialized, mtp", "odd, specialized"}


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_the_engine_gives_the_oracles_distributions(
    name: str, run_case: Callable[..., dict[str, Any]], tiny_dir: Path, tmp_path: Path
) -> None:
    config, engine = CASES[name]
    oracle = Oracle(config.to_hf(), arrays(dict(seeded_weights(config))))
    asked = prompts([1, 5, 17, 64, 65, 130], seed=8)
    result = run_case(
        {
            "model": str(_model(config, tiny_dir, tmp_path)),
            "max_model_len": 256,
            "max_logprobs": -1,
            **engine,
        },
        prompts=asked,
        max_tokens=[20] * len(asked),
        whole=str(tmp_path / "whole.npz"),
    )
    paths = {entry["path"] for page in result["witness"] for entry in page["steps"]}
    assert paths == ({"standard", "specialized"} if engine else {"standard"})
    with np.load(tmp_path / "whole.npz") as got:
        pairs = list(zip(result["outputs"], got.values(), strict=True))
    errors = []
    for out, rows in pairs:
        oracle.margin = float("inf")
        expected = log_softmax(oracle.logits(out["prompt"] + out["tokens"])[len(out["prompt"]) - 1 : -1])
        assert rows.shape == expected.shape
        if oracle.margin > CLEAR_CHOICE:
            errors.append(float(np.abs(rows - expected).max()))
    assert len(errors) >= 4
    assert max(errors) < TOLERANCE


def _model(config: K3Config, tiny_dir: Path, tmp_path: Path) -> Path:
    """The tiny model's directory with the sizes of ``config``; its weights are made from the seed."""
    out = tmp_path / "model"
    shutil.copytree(tiny_dir, out)
    hf = json.loads((out / "config.json").read_text())
    hf["text_config"] |= config.to_hf()["text_config"]
    (out / "config.json").write_text(json.dumps(hf))
    return out
