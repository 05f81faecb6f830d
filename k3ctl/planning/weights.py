"""Weight bytes of one rank, by part."""

from __future__ import annotations

from dataclasses import dataclass, fields

from k3ctl.facts.k3 import BF16, EXPERT_PARTITION_FLOOR, K3, MXFP4, Shape


@dataclass(frozen=True)
class Parallel:
    """How a deployment is divided. ``expert_parallel`` spreads whole experts over TP × DP ranks."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    expert_parallel: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class WeightBytes:
    """Bytes on one rank; ``mla`` includes the absorbed copy of ``kv_b`` that decode uses."""

    kda: float = 0.0
    mla: float = 0.0
    moe_bf16: float = 0.0
    embed_head: float = 0.0
    dense: float = 0.0
    experts: float = 0.0

    @property
    def total(self) -> float:
        """All parts together."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


def expert_partition(parallel: Parallel, shape: Shape = K3) -> int:
    """Expert intermediate columns stored per rank, with vLLM's zero padding up to the kernels' floor."""
    if parallel.expert_parallel:
        return shape.expert_intermediate
    return max(shape.expert_intermediate // parallel.tp, EXPERT_PARTITION_FLOOR)


def rank_weights(parallel: Parallel, shape: Shape = K3) -> WeightBytes:
    """Bytes on the fullest rank (of the fullest pipeline stage)."""
    stages = shape.stages(parallel.pp)
    return max((_stage(stage, parallel, shape) for stage in stages), key=lambda w: w.total)


def _stage(stage: range, parallel: Parallel, shape: Shape) -> WeightBytes:
    mla = sum(layer in stage for layer in shape.mla_layers)
    dense = sum(layer in stage for layer in range(shape.dense_layers))
    moe = len(stage) - dense
    ends = (stage.start == 0) + (stage.stop == shape.layers)
    return WeightBytes(
        kda=(len(stage) - mla) * _kda(parallel.tp, shape),
        mla=mla * _mla(parallel.tp, shape),
        moe_bf16=moe * _moe_bf16(parallel.tp, shape),
        embed_head=ends * shape.vocab / parallel.tp * shape.hidden * BF16,
        dense=dense * 3 * shape.dense_intermediate / parallel.tp * shape.hidden * BF16,
        experts=moe * _experts(parallel, shape),
    )


def _kda(tp: int, shape: Shape) -> float:
    """Packed q, k, v, gate and beta projections, low-rank forget gate, convolution, output projection."""
    width = shape.heads // tp * shape.head_dim
    # vLLM pads these rows to a multiple of 16, at most 0.3 % more; left out
    rows = 4 * width + shape.head_dim + shape.heads // tp
    weights = (
        rows * shape.hidden + width * shape.head_dim + 3 * width * shape.conv_width + shape.hidden * width
    )
    return weights * BF16


def _mla(tp: int, shape: Shape) -> float:
    heads = shape.heads // tp
    down = shape.q_lora + shape.kv_width + heads * shape.head_dim
    query = heads * (shape.head_dim + shape.rope_dim) * shape.q_lora
    kv = 2 * heads * shape.head_dim * shape.kv_lora
    output = shape.hidden * heads * shape.head_dim
    return (down * shape.hidden + query + 2 * kv + output) * BF16


def _moe_bf16(tp: int, shape: Shape) -> float:
    """Router and latent projections (on every rank), shared expert (split)."""
    replicated = (shape.experts + 2 * shape.latent) * shape.hidden
    shared = 3 * shape.shared_intermediate / tp * shape.hidden
    return (replicated + shared) * BF16


def _experts(parallel: Parallel, shape: Shape) -> float:
    columns = expert_partition(parallel, shape)
    held = shape.experts / (parallel.tp * parallel.dp) if parallel.expert_parallel else shape.experts
    return held * 3 * columns * shape.latent * MXFP4
