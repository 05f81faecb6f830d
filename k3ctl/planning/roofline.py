"""Byte and time floors of one Kimi K3 decode step on one rank.

Every operator is charged the bytes that it must move once (weights, states, cache, activations) and the
multiply-adds that it must do; its floor is the slower of the two, operators one after another. Launches,
synchronisation and links are not in it. Assumptions: BF16 weights but for MXFP4 experts, experts chosen
uniformly and independently (real prompts touch fewer), FP32 KDA state read once and written per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from k3ctl.facts.k3 import BF16, FP32, K3, MXFP4, Shape
from k3ctl.facts.products import Rates


@dataclass(frozen=True)
class Step:
    """One decode step: ``requests`` requests at ``context`` tokens, each with ``query`` = 1 + K rows."""

    tp: int
    requests: int
    context: int = 1
    query: int = 1
    kv_bytes: int = BF16
    dcp: int = 1
    split_projections: bool = True
    """Router and latent projections divided over the ranks, as the specialized path does."""

    @property
    def rows(self) -> int:
        """Query tokens of the step."""
        return self.requests * self.query


@dataclass(frozen=True)
class Operator:
    """One operator: calls per step, bytes and floating-point operations per call."""

    name: str
    calls: int
    weight_bytes: float
    other_bytes: float
    flops: float

    def seconds(self, rates: Rates) -> float:
        """Floor of one call."""
        return max((self.weight_bytes + self.other_bytes) / rates.bytes_per_s, self.flops / rates.flops_per_s)


def touched_experts(rows: int, shape: Shape = K3) -> float:
    """Expected distinct experts of ``rows`` tokens under uniform independent routing."""
    return shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** rows)


def operators(step: Step, shape: Shape = K3) -> Iterator[Operator]:
    """All operators of a step on one rank."""
    yield from _kda(step, shape)
    yield from _mla(step, shape)
    yield from _moe(step, shape)
    yield _residuals(step, shape)
    yield _mlp("dense mlp", shape.dense_layers, shape.dense_intermediate, step, shape)
    yield _gemm("lm head", 1, shape.vocab // step.tp, shape.hidden, step.rows)


def floor_seconds(step: Step, rates: Rates, shape: Shape = K3) -> float:
    """Floor of a whole step on one rank."""
    return sum(op.calls * op.seconds(rates) for op in operators(step, shape))


def _gemm(name: str, calls: int, n: int, k: int, rows: int) -> Operator:
    """``out[rows, n] = x[rows, k] @ w[n, k]`` in BF16."""
    return Operator(name, calls, n * k * BF16, rows * (n + k) * BF16, 2.0 * rows * n * k)


def _mlp(name: str, calls: int, intermediate: int, step: Step, shape: Shape) -> Operator:
    up = _gemm("", calls, 2 * intermediate // step.tp, shape.hidden, step.rows)
    down = _gemm("", calls, shape.hidden, intermediate // step.tp, step.rows)
    return Operator(
        name,
        calls,
        up.weight_bytes + down.weight_bytes,
        up.other_bytes + down.other_bytes,
        up.flops + down.flops,
    )


def _kda(step: Step, shape: Shape) -> Iterator[Operator]:
    calls, heads, rows = shape.kda_layers, shape.heads // step.tp, step.rows
    width = heads * shape.head_dim
    yield _gemm("kda in_proj", calls, 4 * width + shape.head_dim + heads, shape.hidden, rows)
    gate = _gemm("", calls, width, shape.head_dim, rows)
    small = 3 * width * shape.conv_width * FP32 + (width + heads + shape.head_dim) * FP32
    state = step.requests * width * shape.head_dim * FP32 * (1 + step.query)
    conv = step.requests * 3 * width * (shape.conv_width - 1) * BF16 * 2
    yield Operator(
        "kda core",
        calls,
        gate.weight_bytes + small,
        state + conv + rows * 5 * width * BF16,
        gate.flops + 8.0 * rows * width * shape.head_dim,
    )
    yield _gemm("kda o_proj", calls, shape.hidden, width, rows)


def _mla(step: Step, shape: Shape) -> Iterator[Operator]:
    calls, heads, rows = len(shape.mla_layers), shape.heads // step.tp, step.rows
    width = heads * shape.head_dim
    yield _gemm("mla in_proj", calls, shape.q_lora + shape.kv_width + width, shape.hidden, rows)
    query = _gemm("", calls, heads * (shape.head_dim + shape.rope_dim), shape.q_lora, rows)
    absorb = width * shape.kv_lora
    latent = rows * heads * shape.kv_width * BF16
    yield Operator(
        "mla query",
        calls,
        query.weight_bytes + absorb * BF16,
        query.other_bytes + latent,
        query.flops + 2.0 * rows * absorb,
    )
    tokens, all_heads = step.context / step.dcp, heads * step.dcp
    cache = step.requests * tokens * shape.kv_width * step.kv_bytes
    yield Operator(
        "mla core",
        calls,
        0,
        cache + rows * all_heads * (shape.kv_width + shape.kv_lora) * BF16,
        2.0 * rows * all_heads * tokens * (shape.kv_lora + shape.kv_width),
    )
    moved = rows * heads * (shape.kv_lora + 2 * shape.head_dim) * BF16
    yield Operator("mla value+gate", calls, absorb * BF16, moved, 2.0 * rows * absorb)
    yield _gemm("mla o_proj", calls, shape.hidden, width, rows)


def _moe(step: Step, shape: Shape) -> Iterator[Operator]:
    calls, rows = shape.moe_layers, step.rows
    parts = step.tp if step.split_projections else 1
    columns = shape.expert_intermediate // step.tp
    yield _gemm("router", calls, shape.experts // parts, shape.hidden, rows)
    yield _gemm("latent down", calls, shape.latent // parts, shape.hidden, rows)
    yield Operator(
        "routed experts",
        calls,
        touched_experts(rows, shape) * 3 * columns * shape.latent * MXFP4,
        rows * shape.experts_per_token * (2 * shape.latent + 3 * columns) * BF16,
        6.0 * rows * shape.experts_per_token * columns * shape.latent,
    )
    yield _gemm("latent up", calls, shape.hidden // parts, shape.latent, rows)
    yield _mlp("shared expert", calls, shape.shared_intermediate, step, shape)


def _residuals(step: Step, shape: Shape) -> Operator:
    """Two block attention residuals per layer and a final one; their inputs grow with every saved block."""
    size = shape.residual_block
    saved = sum(2 * ceil(layer / size) + (layer % size == 0) for layer in range(shape.layers))
    calls = 2 * shape.layers + 1
    mean = (saved + ceil(shape.layers / size)) / calls
    row = step.rows * shape.hidden
    return Operator(
        "attention residuals", calls, 3 * shape.hidden * BF16, row * BF16 * (mean + 4), 6.0 * row * (mean + 1)
    )
