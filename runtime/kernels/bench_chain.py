"""Time the attention half of a KDA layer against vLLM's kernels: `python -m runtime.kernels.bench_chain`.

One rank, no collectives. "k3 without X" leaves one operator of the chain out; the difference to "k3" is what it costs
where it stands.
"""

from collections.abc import Iterator

import torch

from runtime.kernels.chain import BLOCKS, EPS, HEAD, HIDDEN, IN_PROJECTION_ROWS, AttentionHalf, Buffers
from runtime.kernels.common.workshop.bench import Case, main, peer

VLLM = "vllm.models.kimi_k3.nvidia"
SETS = 8


def cases() -> Iterator[Case]:
    """12 heads (a rank of TP8) and 6 heads (TP16), 1…64 requests."""
    for heads in (12, 6):
        layers = [AttentionHalf(heads) for _ in range(SETS)]
        for requests in (1, 2, 4, 8, 16, 32, 64):
            yield _case(heads, requests, layers)


def _case(heads, requests, layers):
    width = heads * HEAD
    pairs = list(zip(layers, [Buffers.random(heads, requests) for _ in range(SETS)], strict=True))
    calls = {"k3": [lambda p=p: p[0](p[1]) for p in pairs]}
    for skip in ("attn_res", "kda_decode"):
        calls[f"k3 without {skip}"] = [lambda p=p, skip=skip: p[0](p[1], skip) for p in pairs]
    if heads == 12 and peer("vllm._custom_ops", "fused_kda_decode"):
        calls["vllm"] = [lambda p=p: _vllm(*p) for p in pairs]
    weights = (IN_PROJECTION_ROWS[heads] * HIDDEN + HIDDEN * width + width * HEAD) * 2
    caches = requests * (heads * HEAD * HEAD * 8 + 3 * width * 6 * 2)
    rows = requests * (HIDDEN * (BLOCKS + 6) + IN_PROJECTION_ROWS[heads] * 2 + width * 2) * 2
    return Case({"heads": heads, "requests": requests}, weights + caches + rows, calls, min_calls=16)


def _vllm(layer, b):
    """vLLM's stock path on Hopper: one Triton kernel, its projection table or cuBLAS, F_B, one fused KDA kernel."""
    heads, rows = layer.kda.spec.heads, b.prefix.shape[0]
    width = heads * HEAD
    fixed = layer.attn_res._fixed
    x = peer(f"{VLLM}.ops.attn_res", "attn_res")(
        b.prefix,
        b.delta,
        b.blocks,
        fixed["score_norm"],
        fixed["score_vec"],
        fixed["out_norm"],
        BLOCKS,
        -1,
        EPS,
        EPS,
    )
    projected = _projection(x, layer.in_projection.weight)
    f_b, conv, A_log, dt_bias, norm = layer.kda.weights
    raw_g = torch.mm(projected[:, 4 * width : 4 * width + HEAD], f_b.T)
    peer("vllm._custom_ops", "fused_kda_decode")(
        projected[:, : 3 * width],
        _taps_first(conv),
        None,
        b.conv_state.transpose(1, 2),
        raw_g.view(1, rows, heads, HEAD),
        projected[:, 4 * width + HEAD : 4 * width + HEAD + heads].unsqueeze(0),
        A_log,
        dt_bias.view(-1),
        b.slots[:, 0],
        b.state,
        b.y.view(1, rows, heads, HEAD),
        -5.0,
        projected[:, 3 * width : 4 * width].view(rows, heads, HEAD),
        norm,
        EPS,
    )
    _projection(b.y, layer.o_proj.weight)


_taps: dict[int, torch.Tensor] = {}


def _taps_first(conv):
    """The convolution weight as vLLM's kernel wants it; made once."""
    key = conv.data_ptr()
    if key not in _taps:
        _taps[key] = conv.view(3, -1, 4).transpose(1, 2).contiguous()
    return _taps[key]


def _projection(x, weight):
    module = f"{VLLM}.low_latency_gemm"
    table = peer(module, "KIMI_K3_PROJECTIONS_SM90") or {}
    if tuple(weight.shape) in table:
        plan = peer(module, "_build_plan")(table[tuple(weight.shape)])
        if x.shape[0] in plan:
            return peer(module, "_run_plan")(plan, x, weight)
    return torch.mm(x, weight.T)


if __name__ == "__main__":
    main("chain", cases)
