"""Checkpoint names, seeded weights for the tiny model, and loading into modules.

Seeded weights are *damped*: sub-layers add little to the embedding stream, so greedy decoding is stable against
rounding and the MTP head, which sees only the next token's embedding, guesses right often but not always.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from runtime.kernels.common.maths.mxfp4 import decode_mxfp4
from runtime.model.config import K3Config
from runtime.model.layers import Experts
from runtime.model.sharding import Weight

TEXT_PREFIX = "language_model."
DAMPING = 0.05
"""Scale of what attention and MLP add to the residual stream."""

_EXPERT = re.compile(r"(?P<block>.+\.experts)\.(?P<index>\d+)\.(?P<which>w[123])\.(?P<kind>weight\w*)$")


def seeded_weights(config: K3Config, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield (checkpoint name, FP32 tensor) for every weight. Each tensor depends on its name and ``seed`` alone."""
    for name, shape, init in _inventory(config):
        generator = torch.Generator().manual_seed(
            (zlib.crc32(name.encode()) ^ (seed * 0x9E3779B1)) & 0xFFFFFFFF
        )
        yield TEXT_PREFIX + name, init(torch.randn(shape, generator=generator))


def checkpoint_shapes(config: K3Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name without ``language_model.``, shape) of every weight of a checkpoint."""
    for name, shape, _ in _inventory(config):
        yield name, shape


def load_module(module: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
    """Load checkpoint tensors (names after ``language_model.``) into the parameters of ``module``.

    Understands stacked experts, plain or MXFP4-packed. Returns the names of the parameters filled; tensors that
    ``module`` has no place for are skipped. Raises ``ValueError`` when a packed expert arrives without its scale.
    """
    parameters = dict(module.named_parameters())
    blocks = {name: child for name, child in module.named_modules() if isinstance(child, Experts)}
    packed: dict[str, dict[str, Tensor]] = {}
    filled: set[str] = set()
    for full_name, tensor in weights:
        name = full_name.removeprefix(TEXT_PREFIX)
        if expert := _EXPERT.match(name):
            block = blocks.get(expert["block"])
            full = None if block is None else _unpack(expert, tensor, packed)
            if block is not None and full is not None:
                block.load(expert["which"], int(expert["index"]), full)
                filled.add(f"{expert['block']}.{expert['which']}")
        elif (target := _target(name, parameters)) is not None:
            _fill(module, target, parameters[target], tensor)
            filled.add(target)
    if packed:
        raise ValueError(f"packed experts without both parts: {', '.join(sorted(packed))}")
    return filled


def missing_weights(module: nn.Module, filled: set[str]) -> list[str]:
    """Parameters that no tensor filled."""
    return sorted(name for name, _ in module.named_parameters() if name not in filled)


def _fill(module: nn.Module, name: str, parameter: nn.Parameter, tensor: Tensor) -> None:
    """By the parameter's own loader (an engine's vocabulary-parallel layers bring one), its Weight, or a copy."""
    owner = module.get_submodule(name.rpartition(".")[0])
    if (loader := getattr(parameter, "weight_loader", None)) is not None:
        loader(parameter, tensor)
    elif isinstance(owner, Weight) and name.endswith(".weight"):
        owner.load(tensor)
    else:
        parameter.data.copy_(tensor.reshape(parameter.shape))


def _unpack(expert: re.Match[str], tensor: Tensor, packed: dict[str, dict[str, Tensor]]) -> Tensor | None:
    """A plain expert weight as it is; an MXFP4 one once both its parts have arrived (collected in ``packed``)."""
    if expert["kind"] == "weight":
        return tensor
    key = f"{expert['block']}.{expert['index']}.{expert['which']}"
    parts = packed.setdefault(key, {})
    parts[expert["kind"]] = tensor
    if len(parts) < 2:
        return None
    del packed[key]
    return decode_mxfp4(parts["weight_packed"], parts["weight_scale"])


def _target(name: str, parameters: dict[str, nn.Parameter]) -> str | None:
    """``A_log`` and ``dt_bias`` are published bare; they live in a module of that name here."""
    if name in parameters:
        return name
    return f"{name}.weight" if f"{name}.weight" in parameters else None


Init = Callable[[Tensor], Tensor]


def _linear(fan_in: int, gain: float = 1.0) -> Init:
    return lambda x: x * (gain / math.sqrt(fan_in))


def _norm(x: Tensor) -> Tensor:
    return 1 + 0.1 * x


def _inventory(c: K3Config) -> Iterator[tuple[str, tuple[int, ...], Init]]:
    hidden = c.hidden_size
    yield "model.embed_tokens.weight", (c.vocab_size, hidden), lambda x: x
    yield "lm_head.weight", (c.vocab_size, hidden), _linear(hidden, 3.0)
    yield "model.norm.weight", (hidden,), _norm
    yield "model.output_attn_res_norm.weight", (hidden,), _norm
    yield "model.output_attn_res_proj.weight", (1, hidden), _linear(hidden)
    for index in range(c.num_hidden_layers):
        prefix = f"model.layers.{index}."
        yield from _block(c, index, prefix)
        for name in ("self_attention_res_norm", "mlp_res_norm"):
            yield f"{prefix}{name}.weight", (hidden,), _norm
        for name in ("self_attention_res_proj", "mlp_res_proj"):
            yield f"{prefix}{name}.weight", (1, hidden), _linear(hidden)
    for index in range(c.num_hidden_layers, c.num_hidden_layers + c.num_nextn_predict_layers):
        yield from _mtp(c, index)


def _block(c: K3Config, index: int, prefix: str) -> Iterator[tuple[str, tuple[int, ...], Init]]:
    yield f"{prefix}input_layernorm.weight", (c.hidden_size,), _norm
    yield f"{prefix}post_attention_layernorm.weight", (c.hidden_size,), _norm
    yield from (_kda if c.is_kda(index) else _mla)(c, f"{prefix}self_attn.")
    if c.is_moe(index):
        yield from _moe(c, f"{prefix}block_sparse_moe.")
    else:
        yield from _mlp(c, f"{prefix}mlp.", c.intermediate_size)


def _kda(c: K3Config, p: str) -> Iterator[tuple[str, tuple[int, ...], Init]]:
    hidden, size, heads, dim = c.hidden_size, c.kda_size, c.kda_num_heads, c.kda_head_dim
    for name in "qkvg":
        yield f"{p}{name}_proj.weight", (size, hidden), _linear(hidden)
    yield f"{p}f_a_proj.weight", (dim, hidden), _linear(hidden)
    yield f"{p}f_b_proj.weight", (size, dim), _linear(dim)
    yield f"{p}b_proj.weight", (heads, hidden), _linear(hidden)
    for name in "qkv":
        yield f"{p}{name}_conv1d.weight", (size, 1, c.conv_width), lambda x: 0.5 * x
    yield f"{p}A_log", (heads,), lambda x: 0.5 * x
    yield f"{p}dt_bias", (size,), lambda x: x - 2
    yield f"{p}o_norm.weight", (dim,), _norm
    yield f"{p}o_proj.weight", (hidden, size), _linear(size, DAMPING)


def _mla(c: K3Config, p: str) -> Iterator[tuple[str, tuple[int, ...], Init]]:
    hidden, heads = c.hidden_size, c.num_attention_heads
    yield f"{p}q_a_proj.weight", (c.q_lora_rank, hidden), _linear(hidden)
    yield f"{p}q_a_layernorm.weight", (c.q_lora_rank,), _norm
    yield f"{p}q_b_proj.weight", (heads * c.qk_head_dim, c.q_lora_rank), _linear(c.q_lora_rank, 1.5)
    yield f"{p}kv_a_proj_with_mqa.weight", (c.latent_dim, hidden), _linear(hidden)
    yield f"{p}kv_a_layernorm.weight", (c.kv_lora_rank,), _norm
    rows = heads * (c.qk_nope_head_dim + c.v_head_dim)
    yield f"{p}kv_b_proj.weight", (rows, c.kv_lora_rank), _linear(c.kv_lora_rank)
    yield f"{p}g_proj.weight", (heads * c.v_head_dim, hidden), _linear(hidden)
    yield f"{p}o_proj.weight", (hidden, heads * c.v_head_dim), _linear(heads * c.v_head_dim, DAMPING)


def _mlp(c: K3Config, p: str, inner: int) -> Iterator[tuple[str, tuple[int, ...], Init]]:
    yield f"{p}gate_proj.weight", (inner, c.hidden_size), _linear(c.hidden_size)
    yield f"{p}up_proj.weight", (inner, c.hidden_size), _linear(c.hidden_size)
    yield f"{p}down_proj.weight", (c.hidden_size, inner), _linear(inner, DAMPING)


def _moe(c: K3Config, p: str) -> Iterator[tuple[str, tuple[int, ...], Init]]:
    hidden, latent, inner = c.hidden_size, c.routed_expert_hidden_size, c.moe_intermediate_size
    yield f"{p}gate.weight", (c.num_experts, hidden), _linear(hidden)
    yield f"{p}gate.e_score_correction_bias", (c.num_experts,), lambda x: 0.05 * x
    for expert in range(c.num_experts):
        for name in ("w1", "w3"):
            yield f"{p}experts.{expert}.{name}.weight", (inner, latent), _linear(latent)
        yield f"{p}experts.{expert}.w2.weight", (latent, inner), _linear(inner)
    yield f"{p}routed_expert_down_proj.weight", (latent, hidden), _linear(hidden)
    yield f"{p}routed_expert_norm.weight", (latent,), _norm
    yield f"{p}routed_expert_up_proj.weight", (hidden, latent), _linear(latent, DAMPING)
    yield from _mlp(c, f"{p}shared_experts.", inner * c.num_shared_experts)


def _mtp(c: K3Config, index: int) -> Iterator[tuple[str, tuple[int, ...], Init]]:
    p, hidden = f"model.layers.{index}.", c.hidden_size
    yield f"{p}enorm.weight", (hidden,), _norm
    yield f"{p}hnorm.weight", (hidden,), _norm
    # the embedding passes, the hidden state does not: a guess from the last token alone
    yield f"{p}eh_proj.weight", (hidden, 2 * hidden), lambda x: torch.eye(*x.shape)
    yield f"{p}shared_head.norm.weight", (hidden,), _norm
    yield from _block(c, index, p)


__all__ = ["checkpoint_shapes", "load_module", "missing_weights", "seeded_weights"]
