"""Random small K3 models: every size, pattern and constant of its own, weights undamped so that every part is heard."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.model.config import K3Config
from runtime.model.weights import TEXT_PREFIX, checkpoint_shapes

VOCABULARY = 61


def small_config(seed: int) -> K3Config:
    """A model of one to seven layers. Each seed is another one; all of K3's constants vary."""
    pick = random.Random(seed)
    layers, heads, experts = pick.randint(2, 7), pick.randint(1, 4), pick.randint(5, 12)
    kda = frozenset(i for i in range(layers) if pick.random() < 0.6) or frozenset({0})
    return K3Config(
        vocab_size=VOCABULARY,
        hidden_size=pick.choice([24, 40, 64]),
        num_hidden_layers=layers,
        rms_norm_eps=pick.choice([1e-5, 1e-3, 0.05]),
        attn_res_block_size=pick.randint(1, 4),
        kda_layers=kda - ({layers - 1} if len(kda) > 1 else set()),
        kda_num_heads=heads,
        kda_head_dim=pick.choice([4, 8, 12]),
        conv_width=pick.randint(2, 5),
        gate_lower_bound=pick.choice([-5.0, -5.0, -1.5, None]),
        kda_norm_eps=1e-5,
        num_attention_heads=pick.randint(1, 4),
        q_lora_rank=pick.choice([12, 20]),
        kv_lora_rank=pick.choice([8, 16]),
        qk_nope_head_dim=pick.choice([4, 8]),
        qk_rope_head_dim=pick.choice([2, 6]),
        v_head_dim=pick.choice([4, 10]),
        first_k_dense_replace=pick.randint(0, 2),
        intermediate_size=pick.choice([20, 48]),
        num_experts=experts,
        num_experts_per_token=pick.randint(1, 4),
        moe_intermediate_size=32 * pick.randint(1, 2),
        routed_expert_hidden_size=32 * pick.randint(1, 2),
        num_shared_experts=pick.randint(1, 3),
        moe_renormalize=pick.random() < 0.7,
        routed_scaling_factor=pick.choice([0.4, 1.7, 2.8]),
        situ_beta=pick.choice([1.5, 4.0]),
        situ_linear_beta=pick.choice([2.0, 25.0]),
    )


def small_weights(config: K3Config, seed: int, *, packed: bool) -> dict[str, Tensor]:
    """Tensors by checkpoint name; routed experts plain, or ``packed`` as random MXFP4 bytes."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in checkpoint_shapes(config):
        made = _packed(name, shape, rng) if packed and ".experts." in name else _plain(name, shape, rng)
        tensors |= {TEXT_PREFIX + part: torch.from_numpy(array) for part, array in made}
    return tensors


def arrays(tensors: dict[str, Tensor]) -> dict[str, NDArray[np.generic]]:
    """The same, for the oracle."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _plain(
    name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.generic]]]:
    draw = rng.standard_normal(shape)
    if "norm.weight" in name or "layernorm" in name:
        value = 1 + 0.3 * draw
    elif name.endswith("A_log"):
        value = 0.7 * draw
    elif name.endswith("dt_bias"):
        value = draw - 1
    elif name.endswith("e_score_correction_bias"):
        value = 0.3 * draw  # enough to change the choice
    elif "conv1d" in name:
        value = 0.6 * draw
    elif "embed_tokens" in name:
        value = draw
    else:
        value = 1.2 * draw / math.sqrt(shape[-1])
    yield name, value.astype(np.float32)


def _packed(
    name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.generic]]]:
    yield f"{name}_packed", rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), dtype=np.uint8)
    yield f"{name}_scale", rng.integers(121, 124, (*shape[:-1], shape[-1] // 32), dtype=np.uint8)
