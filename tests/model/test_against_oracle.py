"""The model against the oracle: the published formulas once more, in plain NumPy, sharing no code with it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.kernels.common.maths.mxfp4 import decode_mxfp4
from runtime.model.config import TINY, K3Config
from runtime.model.layers import KdaInputs, KdaLayer, MlaInputs, MlaLayer
from runtime.model.mixing import empty_kda_state, kda_uniform, mla_uniform
from runtime.model.model import K3Model
from runtime.model.weights import load_module, missing_weights, seeded_weights
from tests.model.oracle import Oracle, decode
from tests.model.small_models import VOCABULARY, arrays, small_config, small_weights

TINY_TOLERANCE = 1e-4  # of logits up to 13, FP32 through 8 damped layers (seen: 1.2e-5)
SMALL_TOLERANCE = 2e-3  # of logits up to 7, FP32 through 7 undamped layers (seen: 7e-4)
DOUBLE_TOLERANCE = 2e-4  # FP64 but for router, beta and MLA gate, which are FP32 in every model (seen: 4e-5)
CLEAR_CHOICE = 2e-5
"""Experts chosen by less than this may differ by rounding: such a prompt says nothing."""
SEEDS = range(16)


def fill(config: K3Config, tensors: dict[str, Tensor]) -> K3Model:
    model = K3Model(config)
    assert missing_weights(model, load_module(model, tensors.items())) == []
    return model


def clear_prompt(oracle: Oracle, length: int, vocabulary: int, seed: int) -> tuple[list[int], np.ndarray]:
    """A prompt whose experts are chosen clearly, and the oracle's logits [T,V] for it."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        prompt, oracle.margin = rng.integers(0, vocabulary, length).tolist(), float("inf")
        logits = oracle.logits(prompt)
        if oracle.margin > CLEAR_CHOICE:
            return prompt, logits
    raise AssertionError("no prompt with a clear choice of experts")


def worst(logits: Tensor, expected: np.ndarray) -> float:
    assert logits.shape == expected.shape
    return float(np.abs(logits.double().numpy() - expected).max())


def test_the_oracle_shares_nothing_with_what_it_checks() -> None:
    code = (
        "import sys; import tests.model.oracle;"
        "print([m for m in sys.modules if m.split('.')[0] in ('runtime', 'torch', 'vllm', 'transformers')])"
    )
    root = Path(__file__).parents[2]
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def tiny_oracle() -> Oracle:
    return Oracle(TINY.to_hf(), arrays(dict(seeded_weights(TINY))))


def test_cpu_tiny_gives_the_oracles_logits(tiny: K3Model, tiny_oracle: Oracle) -> None:
    prompt, expected = clear_prompt(tiny_oracle, 131, TINY.vocab_size, 3)
    assert worst(tiny(torch.tensor(prompt))[0], expected) < TINY_TOLERANCE


@pytest.mark.parametrize("packed", [False, True], ids=["plain experts", "MXFP4 experts"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_small_model_gives_the_oracles_logits(seed: int, packed: bool) -> None:
    config = small_config(seed)
    tensors = small_weights(config, seed, packed=packed)
    prompt, expected = clear_prompt(Oracle(config.to_hf(), arrays(tensors)), 70, VOCABULARY, seed)
    model = fill(config, tensors)
    assert worst(model(torch.tensor(prompt))[0], expected) < SMALL_TOLERANCE
    assert worst(model.double()(torch.tensor(prompt))[0], expected) < DOUBLE_TOLERANCE


def test_the_random_models_cover_what_can_differ() -> None:
    configs = [small_config(seed) for seed in SEEDS]
    for field in K3Config.__dataclass_fields__:
        if field not in {"vocab_size", "kda_norm_eps", "num_nextn_predict_layers"}:
            assert len({getattr(c, field) for c in configs}) > 1, field
    assert any(c.num_blocks > 2 and c.attn_res_block_size > 1 for c in configs)
    assert any(not c.is_kda(0) for c in configs)
    assert any(c.num_attention_heads != c.kda_num_heads for c in configs)


class _UniformMixer:
    """The batched forms of a decode or verify step, over plain lists: B sequences, the same tokens a call each."""

    def __init__(self, batch: int) -> None:
        self.batch, self.kda_states, self.latents = batch, {}, {}

    def kda(self, index: int, layer: KdaLayer, inputs: KdaInputs) -> Tensor:
        if index not in self.kda_states:
            empty = empty_kda_state(layer, inputs.qkv.dtype)
            self.kda_states[index] = [x.expand(self.batch, *x.shape) for x in (empty.window, empty.recurrent)]
        o, windows, states = kda_uniform(layer, inputs, *self.kda_states[index])
        self.kda_states[index] = [windows[:, -1], states[:, -1]]
        return o

    def mla(self, index: int, layer: MlaLayer, inputs: MlaInputs) -> Tensor:
        fresh = inputs.latent.unflatten(0, (self.batch, -1))
        before = self.latents.get(index)
        cache = fresh if before is None else torch.cat([before, fresh], 1)
        self.latents[index] = cache
        return mla_uniform(layer, inputs.q, cache, torch.full((self.batch,), cache.shape[1]))


@pytest.mark.parametrize("query_len", [1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_batched_decode_steps_give_the_oracles_logits(seed: int, query_len: int) -> None:
    config = small_config(seed)
    tensors = small_weights(config, seed, packed=False)
    oracle = Oracle(config.to_hf(), arrays(tensors))
    pairs = [clear_prompt(oracle, 24, VOCABULARY, 10 * seed + i) for i in range(3)]
    model, mixer = fill(config, tensors), _UniformMixer(3)
    ids, rows = torch.tensor([prompt for prompt, _ in pairs]), []
    for step in ids.split(query_len, dim=1):
        h = model.model(model.model.embed_tokens.weight[step.flatten()], mixer)
        rows.append(model.lm_head(model.model.normalize(h)).unflatten(0, (3, -1)))
    assert worst(torch.cat(rows, 1), np.stack([expected for _, expected in pairs])) < SMALL_TOLERANCE


def test_every_mxfp4_code_and_scale_decodes_to_the_same_number() -> None:
    codes = np.arange(256, dtype=np.uint8).repeat(16).reshape(256, 16)
    for scale in range(1, 252):  # beyond, the largest magnitudes leave FP32
        scales = np.full((256, 1), scale, dtype=np.uint8)
        ours = decode_mxfp4(torch.from_numpy(codes), torch.from_numpy(scales)).double().numpy()
        assert np.array_equal(ours, decode(codes, scales))


@pytest.mark.parametrize("layout", ["padded", "4-d"])
def test_a_log_counts_the_same_in_each_published_layout(layout: str) -> None:
    config = replace(small_config(1), kda_num_heads=3)
    tensors = small_weights(config, 1, packed=False)
    prompt, expected = clear_prompt(Oracle(config.to_hf(), arrays(tensors)), 20, VOCABULARY, 1)
    for name in [n for n in tensors if n.endswith("A_log")]:
        values = tensors[name]
        tensors[name] = (
            torch.cat([values, torch.ones(5)]) if layout == "padded" else values.reshape(1, 1, -1, 1)
        )
    assert worst(fill(config, tensors)(torch.tensor(prompt))[0], expected) < SMALL_TOLERANCE
    assert np.allclose(Oracle(config.to_hf(), arrays(tensors)).logits(prompt), expected, atol=1e-12)
