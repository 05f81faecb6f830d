"""Time MLA decode against FA3, FlashMLA and vLLM's chain: `python -m runtime.kernels.mla.bench`."""

from collections.abc import Callable, Iterator
from importlib import import_module

import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.bench import Case, buffer_sets, main, peer
from runtime.kernels.mla.bench_steps import BLOCK, Step, Weights, random_step, random_weights
from runtime.kernels.mla.dispatch import MlaDecode
from runtime.kernels.mla.shapes import HEAD, KEY, LATENT, NOPE, ROW, VALUE
from runtime.kernels.mla.spec import MlaDecodeSpec

CONCAT = "vllm.models.kimi_k3.nvidia.ops.fused_mla_key_concat_kv_cache"


def cases() -> Iterator[Case]:
    """Core alone and everything between the projections ("whole"), at 200, 8k and 120k; verify rows; shards' merge."""
    for context in (200, 8192, 120_000):
        for requests in (1, 8, 64):
            for part in ("core", "whole"):
                yield _case(part, 12, 1, requests, context)
    for context in (200, 8192):
        yield _case("core", 6, 1, 1, context)
        yield _case("core", 96, 1, 8, context)
        for tokens in (4, 8):
            yield _case("core", 12, tokens, 1, context)
            yield _case("core", 12, tokens, 8, context)
    for tokens in (1, 8):
        yield _finish(tokens)


def _case(part: str, heads: int, tokens: int, requests: int, context: int) -> Case:
    spec = MlaDecodeSpec(heads, tokens)
    moved = requests * context * ROW * 2
    weights = random_weights(spec)
    if part == "whole":
        moved += (weights.w_qb.numel() + weights.kv_b.numel()) * 2
    sets = 1 if requests * context * ROW * 2 > 1e9 else min(16, buffer_sets(moved))
    steps = [random_step(spec, [context] * requests, seed=i, unused=0.0) for i in range(sets)]
    copies = [random_weights(spec, seed) for seed in range(8 if part == "whole" else 1)]
    calls: dict[str, list[Callable[[], object]]] = {}
    for name, provider, overlap in (
        ("k3", "cute", Overlap(True, True)),
        ("k3-waits", "cute", Overlap()),
        ("k3-triton", "triton", Overlap()),
    ):
        site = MlaDecodeSpec(heads, tokens, overlap=overlap)

        def ours(site=site, provider=provider):
            ops = [MlaDecode(site, *w.operands, provider=provider) for w in copies]
            space = ops[0].buffers(requests)
            return [_ours(part, ops[i % len(ops)], step, space) for i, step in enumerate(steps)]

        _keep(calls, name, ours)
    chain = _chain if part == "whole" else _attention
    for name, attend in (("fa3", _fa3), ("flashmla", _flashmla)):

        def theirs(attend=attend):
            return [chain(attend, copies[i % len(copies)], spec, step) for i, step in enumerate(steps)]

        _keep(calls, name, theirs)
    values = {"part": part, "heads": heads, "tokens": tokens, "requests": requests, "context": context}
    return Case(values, moved, calls, min_calls=16 if sets == 1 else 48)


def _keep(calls: dict, name: str, build: Callable[[], list]) -> None:
    """Keep a contender that can be built and whose first call runs; say why another cannot."""
    try:
        found = build()
        found[0]()
        torch.cuda.synchronize()
    except Exception as error:  # a peer that is not there or refuses the shape leaves the others
        print(f"{name}: {type(error).__name__}: {str(error)[:160]}", flush=True)
        return
    calls[name] = found


def _ours(part: str, op: MlaDecode, step: Step, space) -> Callable[[], object]:
    if part == "whole":
        return lambda: step.run(op, space)
    query = torch.randn(len(step.out), op.spec.heads, ROW, device="cuda").bfloat16()
    return lambda: op.core(query, step.kv_a, step.context, space)


def _attention(attend, _: Weights, spec: MlaDecodeSpec, step: Step) -> Callable[[], object]:
    """A peer's attention alone, with its own merge of splits."""
    query = torch.randn(len(step.out), spec.heads, ROW, device="cuda").bfloat16()
    run = attend(spec, step)
    return lambda: run(query)


def _chain(attend, w: Weights, spec: MlaDecodeSpec, step: Step) -> Callable[[], object]:
    """What vLLM launches between its projections, with a peer's attention."""
    norm = peer("vllm.models.common.ops", "fused_q_kv_rmsnorm")
    insert = peer(CONCAT, "fused_mla_decode_q_concat_kv_cache_insert")
    gemm = peer("vllm.models.kimi_k3.nvidia.low_latency_gemm", "try_low_latency_gemm")
    gate_by = peer("vllm.models.kimi_k3.nvidia.mla", "_gate_sigmoid_mul")
    if None in (norm, insert, gemm, gate_by):
        raise RuntimeError("vLLM's chain is not installed")
    run, c = attend(spec, step), step.context
    w_uk, w_uv = (x.contiguous() for x in (w.kv_b[:, :NOPE], w.kv_b[:, NOPE:].transpose(1, 2)))

    def call():
        c_q, latent = norm(step.q_a, step.kv_a[:, :LATENT], w.q_norm, w.kv_norm, spec.eps)
        q = gemm(c_q, w.w_qb)
        q = (torch.mm(c_q, w.w_qb.T) if q is None else q).view(-1, spec.heads, HEAD)
        absorbed = torch.bmm(q[..., :NOPE].transpose(0, 1), w_uk).transpose(0, 1)
        query = insert(absorbed, q[..., NOPE:], latent, step.kv_a[:, LATENT:], c.cache, c.slots)
        o = run(query).view(-1, spec.heads, LATENT)
        value = torch.empty(len(step.out), spec.heads, VALUE, device="cuda", dtype=torch.bfloat16)
        torch.bmm(o.transpose(0, 1), w_uv, out=value.transpose(0, 1))
        return gate_by(value.flatten(1), step.gate)

    return call


def _fa3(spec: MlaDecodeSpec, step: Step):
    """vLLM's default on Hopper, scheduled ahead as its metadata builder does."""
    module = "vllm.vllm_flash_attn.flash_attn_interface"
    attention, schedule = peer(module, "flash_attn_varlen_func"), peer(module, "get_scheduler_metadata")
    if attention is None or schedule is None:
        raise RuntimeError("FA3 is not installed")
    c, requests = step.context, len(step.context.lengths)
    starts = torch.arange(0, len(step.out) + 1, spec.tokens, device="cuda", dtype=torch.int32)
    longest, splits = int(c.lengths.max()), 32  # vLLM's bound of splits in a graph
    plan = schedule(
        batch_size=requests, max_seqlen_q=spec.tokens, max_seqlen_k=longest, num_heads_q=spec.heads, num_heads_kv=1,
        headdim=KEY, cache_seqlens=c.lengths, qkv_dtype=torch.bfloat16, headdim_v=LATENT, page_size=BLOCK,
        cu_seqlens_q=starts, causal=True, num_splits=splits,
    )  # fmt: skip
    keys, values = (x.unsqueeze(-2) for x in (c.cache[..., LATENT:], c.cache[..., :LATENT]))

    def run(query):
        return attention(
            q=query[..., LATENT:], k=keys, v=values, q_v=query[..., :LATENT], max_seqlen_q=spec.tokens,
            cu_seqlens_q=starts, max_seqlen_k=longest, seqused_k=c.lengths, block_table=c.block_table,
            softmax_scale=spec.scale, causal=True, fa_version=3, scheduler_metadata=plan, num_splits=splits,
        )  # fmt: skip

    return run


def _flashmla(spec: MlaDecodeSpec, step: Step):
    """FlashMLA's dense decode on pages of 64 rows: vLLM's library, without its Python side."""
    import_module("vllm._flashmla_C")
    dense = torch.ops._flashmla_C.dense_decode_fwd
    c, parts = step.context, BLOCK // 64
    pages = c.cache.view(-1, 64, 1, ROW)
    inner = torch.arange(parts, device="cuda", dtype=torch.int32)
    table = (c.block_table.clamp_min(0)[..., None] * parts + inner).flatten(1).contiguous()
    requests = len(c.lengths)
    plan = dense(
        torch.zeros(requests, spec.tokens, spec.heads, ROW, device="cuda", dtype=torch.bfloat16),
        *(pages, LATENT, c.lengths, table, spec.scale, True, None, None),
    )[2:4]

    def run(query):
        rows = query.view(requests, spec.tokens, spec.heads, ROW)
        return dense(rows, pages, LATENT, c.lengths, table, spec.scale, True, *plan)[0]

    return run


def _finish(rows: int) -> Case:
    """Merge of eight shards, W_UV and gate, in one launch, with the number of rows as requests."""
    spec, shards = MlaDecodeSpec(12), 8
    ops = [MlaDecode(spec, *random_weights(spec, seed).operands, provider="triton") for seed in range(16)]
    sets = []
    for op in ops:
        o = torch.randn(shards, rows, 12, LATENT, device="cuda")
        lse = torch.randn(shards, rows, 12, device="cuda")
        gate, out = (torch.randn(rows, 12 * VALUE, device="cuda").bfloat16() for _ in range(2))
        sets.append((op, o, lse, gate, out))
    moved = sets[0][1].nbytes + 12 * VALUE * LATENT * 2
    calls = [lambda s=s: s[0].finish(*s[1:]) for s in sets]
    values = {"part": "merge of 8", "heads": 12, "tokens": 1, "requests": rows, "context": 0}
    return Case(values, moved, {"k3": calls})


if __name__ == "__main__":
    main("mla", cases)
