"""What a call site of MLA decode is, and what the kernels cannot do."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import check_tensor, require
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.mla.shapes import HEAD, LATENT, MAX_REQUESTS, MAX_TOKENS, NOPE, ROW, VALUE

CUTE_TARGETS = ("sm_90a", "sm_100a", "sm_103a")


@dataclass(frozen=True)
class MlaDecodeSpec:
    """One call site; everything here is fixed when the model is loaded.

    heads: of the query, 12 at TP8, 6 at TP16, 96 where the context is sharded over all ranks. tokens: query tokens per
    request, 1 for decode, 2…8 for verify. q_rank: columns of q_a. scale: of the scores. ranks, rank: of decode context
    parallelism. overlap: promises about the neighbours of the core, whose state is the cache. In place: the cache.
    """

    heads: int
    tokens: int = 1
    q_rank: int = 1536
    scale: float = HEAD**-0.5
    eps: float = 1e-5
    ranks: int = 1
    rank: int = 0
    overlap: Overlap = field(default_factory=Overlap)


def problems(spec: MlaDecodeSpec) -> list[str]:
    """Every reason why no kernel here can run `spec`."""
    checks = (
        (spec.heads < 1, f"heads {spec.heads} is not positive"),
        (not 1 <= spec.tokens <= MAX_TOKENS, f"tokens {spec.tokens} is not in 1…{MAX_TOKENS}"),
        (spec.q_rank < 16 or spec.q_rank % 16 > 0, f"q_rank {spec.q_rank} is not a positive multiple of 16"),
        (not 0 < spec.scale < float("inf"), f"scale {spec.scale} is not positive"),
        (not 0 <= spec.rank < spec.ranks, f"rank {spec.rank} is not one of {spec.ranks}"),
    )
    return [reason for failed, reason in checks if failed]


def unsupported(spec: MlaDecodeSpec, arch: str) -> list[str]:
    """Every reason why the CuTe core cannot run `spec` on `arch`."""
    known = arch in CUTE_TARGETS
    return [
        *([] if known else [f"compiled for {', '.join(CUTE_TARGETS)}, not for {arch}"]),
        *problems(spec),
    ]


def check_weights(
    spec: MlaDecodeSpec, q_norm: Tensor, w_qb: Tensor, kv_norm: Tensor, w_uk: Tensor, w_uv: Tensor
) -> None:
    """Raise ValueError unless the weights fit `spec`, and unless `spec` itself can be.

    q_norm: [R]. w_qb: [N 192, R]. kv_norm: [512]. w_uk: [N, 128, 512] and w_uv: [N, 128, 512], heads any multiple of 8
    apart, as the halves of kv_b are. All BF16 on one device.
    """
    if found := problems(spec):
        raise ValueError(f"mla_decode: {'; '.join(found)}")
    rest = {"dtype": torch.bfloat16, "device": w_qb.device}
    check_tensor("q_norm", q_norm, shape=(spec.q_rank,), **rest)
    check_tensor("w_qb", w_qb, shape=(spec.heads * HEAD, spec.q_rank), contiguous_from=0, **rest)
    check_tensor("kv_norm", kv_norm, shape=(LATENT,), **rest)
    for name, weight, width in (("w_uk", w_uk, NOPE), ("w_uv", w_uv, VALUE)):
        check_tensor(
            name, weight, shape=(spec.heads, width, LATENT), contiguous_from=1, row_multiple=8, **rest
        )


@dataclass(frozen=True)
class Context:
    """The cache of a step's requests, in the engine's pages (`composed.mla_core`).

    cache: [pages, block, 576] BF16, rows contiguous. block_table: [B, W] int32. lengths: [B] int32. slots: [T] int64.
    """

    cache: Tensor
    block_table: Tensor
    lengths: Tensor
    slots: Tensor


def check(
    spec: MlaDecodeSpec, q_a: Tensor, kv_a: Tensor, gate: Tensor, context: Context, out: Tensor
) -> None:
    """Raise ValueError unless the tensors of a call fit `spec`.

    q_a: [T, R], kv_a: [T, 576], gate: [T, N 128], BF16, any row stride that is a multiple of 8: columns of one
    projection. out: [T, N 128] BF16. T = B · tokens, at most 64 requests.
    """
    rows, width = check_context(spec, context), spec.heads * VALUE
    rest = {"dtype": torch.bfloat16, "device": context.cache.device, "row_multiple": 8}
    for name, tensor, columns in (
        ("q_a", q_a, spec.q_rank),
        ("kv_a", kv_a, ROW),
        ("gate", gate, width),
        ("out", out, width),
    ):
        check_tensor(name, tensor, shape=(rows, columns), **rest)


def check_context(spec: MlaDecodeSpec, context: Context) -> int:
    """Raise ValueError unless the pages and tables fit `spec`; returns the token rows of the step."""
    cache, device = context.cache, context.cache.device
    check_tensor("cache", cache, shape=(None, None, ROW), dtype=torch.bfloat16, row_multiple=8)
    require(cache.shape[1] > 0, "cache", "of at least one row a page", cache.shape[1])
    requests = context.lengths.shape[0]
    require(requests <= MAX_REQUESTS, "lengths", f"of at most {MAX_REQUESTS} requests", requests)
    i32 = {"dtype": torch.int32, "device": device, "align": 4}
    check_tensor("lengths", context.lengths, shape=(requests,), **i32)
    check_tensor("block_table", context.block_table, shape=(requests, None), **i32)
    rows = requests * spec.tokens
    check_tensor("slots", context.slots, shape=(rows,), dtype=torch.int64, device=device, align=8)
    return rows
