"""Time KDA decode and verify against vLLM and SGLang: `python -m runtime.kernels.kda.bench`."""

from collections.abc import Iterator
from types import SimpleNamespace

import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.bench import Case, buffer_sets, main, peer
from runtime.kernels.kda.dispatch import KdaDecode
from runtime.kernels.kda.spec import KdaDecodeSpec

K = 128
FLA = "vllm.third_party.flash_linear_attention.ops.kda"
RECURRENT = "vllm.models.kimi_k3.nvidia.ops.third_party.kda.fused_recurrent"
CONV = "vllm.model_executor.layers.mamba.ops.causal_conv1d"


def cases() -> Iterator[Case]:
    """Decode at 12 and 6 heads, 1…64 requests; verify of 8 tokens, 1…16 requests. Every contender includes F_B."""
    for heads in (12, 6):
        for requests in (1, 2, 4, 8, 16, 32, 64):
            yield _case(heads, requests, 1)
    for heads in (12, 6):
        for requests in (1, 2, 4, 8, 16):
            yield _case(heads, requests, 8)


def _case(heads, requests, tokens):
    width = heads * K
    state = heads * K * K * 4 * (1 + tokens)
    moved = requests * (state + 3 * width * (3 + tokens + 2) * 2 + tokens * 5 * width * 2) + width * (
        K * 2 + 64
    )
    weights = _weights(heads)
    sets = [_buffers(heads, requests, tokens) for _ in range(buffer_sets(moved, 64) if moved < 5e7 else 8)]
    overlaps = {"k3": Overlap(True, True), "k3-waits": Overlap()}
    calls = {}
    for name, overlap in overlaps.items():
        op = _ours(weights, heads, tokens, overlap)
        calls[name] = [
            lambda b=b, op=op: op(b.projected, b.conv, b.state, b.slots, b.out, b.accepted) for b in sets
        ]
    fused = peer("vllm._custom_ops", "fused_kda_decode")
    if fused and tokens == 1 and heads in (12, 24, 48, 96):
        calls["vllm-fused"] = [lambda b=b: _vllm_fused(fused, weights, b) for b in sets]
    sglang = peer("sglang.kernels.ops.attention.kda_fused_decode", "kda_fused_decode")
    if sglang and tokens == 1 and heads in (3, 6, 12):
        calls["sglang-fused"] = [lambda b=b: _sglang(sglang, weights, b) for b in sets]
    if peer(RECURRENT, "fused_recurrent_kda") and (tokens > 1 or heads == 6):
        chain = _vllm_verify if tokens > 1 else _vllm_decode
        calls["vllm-triton"] = [lambda b=b: chain(weights, b) for b in sets]
    return Case({"heads": heads, "requests": requests, "tokens": tokens}, moved, calls, min_calls=32)


def _ours(w, heads, tokens, overlap):
    spec = KdaDecodeSpec(heads, tokens, overlap=overlap)
    return KdaDecode(spec, w.f_b, w.conv, w.A_log, w.dt_bias, w.norm, provider="cute")


def _weights(heads):
    width, device = heads * K, "cuda"
    conv = torch.randn(3 * width, 4, device=device) * 0.4
    return SimpleNamespace(
        heads=heads,
        f_b=(torch.randn(width, K, device=device) / 11).bfloat16(),
        conv=conv,
        conv_taps_first=conv.view(3, width, 4).transpose(1, 2).contiguous(),
        no_bias=torch.zeros(3 * width, device=device),
        A_log=torch.randn(heads, device=device) * 0.3,
        dt_bias=torch.randn(heads, K, device=device) * 0.3,
        norm=torch.rand(K, device=device) + 0.5,
    )


def _buffers(heads, requests, tokens):
    width, pages, device = heads * K, requests * tokens + 1, "cuda"
    rows = requests * tokens
    columns = -(-(4 * width + K + heads) // 16) * 16
    projected = torch.randn(rows, columns, device=device).bfloat16()
    out = torch.empty(rows, width, device=device, dtype=torch.bfloat16)
    slots = (torch.randperm(pages - 1, device=device) + 1).int().view(requests, tokens)
    return SimpleNamespace(
        rows=rows,
        tokens=tokens,
        projected=projected,
        qkv=projected[:, : 3 * width],
        gate=projected[:, 3 * width : 4 * width],
        f_a=projected[:, 4 * width : 4 * width + K],
        beta=projected[:, 4 * width + K : 4 * width + K + heads],
        raw_g=torch.empty_like(out),
        conv=torch.randn(pages, tokens + 2, 3 * width, device=device).bfloat16(),
        state=torch.randn(pages, heads, K, K, device=device),
        slots=slots,
        first_slots=slots[:, 0].contiguous(),
        accepted=torch.randint(1, tokens + 1, (requests,), device=device).int() if tokens > 1 else None,
        starts=torch.arange(0, rows + 1, tokens, device=device).int(),
        mixed=torch.empty(rows, 3 * width, device=device, dtype=torch.bfloat16),
        o=torch.empty_like(out),
        out=out,
    )


def _forget(w, b):
    torch.mm(b.f_a, w.f_b.T, out=b.raw_g)
    return b.raw_g.view(1, b.rows, w.heads, K), b.beta.unsqueeze(0)


def _vllm_fused(fused, w, b):
    raw_g, beta = _forget(w, b)
    fused(
        b.qkv,
        w.conv_taps_first,
        None,
        b.conv.transpose(1, 2),
        raw_g,
        beta,
        w.A_log,
        w.dt_bias.view(-1),
        b.first_slots,
        b.state,
        b.out.view(1, b.rows, w.heads, K),
        -5.0,
        b.gate.view(b.rows, w.heads, K),
        w.norm,
        1e-5,
    )


def _sglang(fused, w, b):
    _forget(w, b)
    fused(
        b.qkv,
        b.raw_g,
        b.beta,
        b.conv,
        *w.conv_taps_first,
        w.no_bias,
        w.A_log,
        w.dt_bias.view(-1),
        b.gate,
        w.norm,
        b.state,
        b.first_slots,
        K**-0.5,
        1e-5,
        -5.0,
    )


def _vllm_decode(w, b):
    raw_g, beta = _forget(w, b)
    peer(CONV, "causal_conv1d_update")(
        b.qkv,
        b.conv.transpose(1, 2),
        w.conv,
        None,
        activation="silu",
        conv_state_indices=b.first_slots,
        validate_data=True,
        out=b.mixed,
    )
    o, _ = peer(RECURRENT, "fused_recurrent_kda_packed_decode")(
        mixed_qkv=b.mixed,
        raw_g=raw_g,
        raw_beta=beta,
        A_log=w.A_log,
        dt_bias=w.dt_bias.view(-1),
        lower_bound=-5.0,
        initial_state=b.state,
        state_indices=b.first_slots,
        out=b.o.view(1, b.rows, w.heads, K),
    )
    _vllm_norm(w, b, o)


def _vllm_verify(w, b):
    raw_g, beta = _forget(w, b)
    peer(CONV, "causal_conv1d_update")(
        b.qkv,
        b.conv.transpose(1, 2),
        w.conv,
        None,
        activation="silu",
        conv_state_indices=b.slots[:, 0],
        num_accepted_tokens=b.accepted,
        query_start_loc=b.starts,
        max_query_len=b.tokens,
        validate_data=False,
        out=b.mixed,
    )
    q, k, v = (part.view(1, b.rows, w.heads, K) for part in b.mixed.split(w.heads * K, dim=-1))
    o, _ = peer(RECURRENT, "fused_recurrent_kda")(
        q=q,
        k=k,
        v=v,
        raw_g=raw_g,
        raw_beta=beta,
        A_log=w.A_log,
        dt_bias=w.dt_bias.view(-1),
        lower_bound=-5.0,
        initial_state=b.state,
        cu_seqlens=b.starts,
        ssm_state_indices=b.slots,
        num_accepted_tokens=b.accepted,
        out=b.o.view(1, b.rows, w.heads, K),
    )
    _vllm_norm(w, b, o)


def _vllm_norm(w, b, o):
    peer(FLA, "rms_norm_gated")(o, b.gate.view(1, b.rows, w.heads, K), w.norm, None, "sigmoid", eps=1e-5)


if __name__ == "__main__":
    main("kda", cases)
