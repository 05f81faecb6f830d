"""Time Attention Residuals against vLLM's kernels: `python -m runtime.kernels.attn_res.bench`."""

from collections.abc import Iterator

import torch

from runtime.kernels.attn_res.dispatch import AttnRes
from runtime.kernels.attn_res.spec import AttnResSpec
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.bench import Case, buffer_sets, main, peer

D, BLOCKS, EPS = 7168, 8, 1e-5
VLLM = "vllm.models.kimi_k3.nvidia"


def cases() -> Iterator[Case]:
    """Eight blocks, delta and output norm, 1…64 tokens; "k3" with both promises of `Overlap`, "k3-waits" with none."""
    weights = [torch.rand(D, device="cuda").bfloat16() + 0.5, (torch.randn(D, device="cuda") / 20).bfloat16()]
    weights.append(torch.rand(D, device="cuda").bfloat16() + 0.5)
    ops = {
        name: AttnRes(AttnResSpec(D, BLOCKS, None, True, True, EPS, EPS, overlap), *weights, provider="cute")
        for name, overlap in (("k3", Overlap(True, True)), ("k3-waits", Overlap()))
    }
    triton, cluster = peer(f"{VLLM}.ops.attn_res", "attn_res"), _vllm_cluster(weights)
    for tokens in (1, 2, 4, 8, 16, 32, 64):
        moved = tokens * D * 2 * (BLOCKS + 4) + 3 * D * 2
        sets = [_buffers(tokens) for _ in range(buffer_sets(moved, 256))]
        calls = {name: [lambda b=b, op=op: op(*b) for b in sets] for name, op in ops.items()}
        if triton:
            calls["vllm-triton"] = [
                lambda b=b: triton(b[0], b[1], b[2], *weights, BLOCKS, -1, EPS, EPS) for b in sets
            ]
        if cluster:
            calls["vllm-cluster"] = [cluster(*b) for b in sets]
        yield Case({"tokens": tokens}, moved, calls)


def _buffers(tokens):
    prefix, delta = (torch.randn(tokens, D, device="cuda").bfloat16() for _ in range(2))
    return prefix, delta, torch.randn(tokens, BLOCKS, D, device="cuda").bfloat16(), torch.empty_like(prefix)


def _vllm_cluster(weights):
    """vLLM's specialised kernel, which vLLM itself refuses on Hopper, compiled for the GPU at hand."""
    compile_consumer = peer(f"{VLLM}.specialized_decode.cutedsl.attn_res.prepared", "compile_consumer")
    if compile_consumer is None:
        return None
    host = f"{VLLM}.specialized_decode.cutedsl.common.host"
    to_cute, view, stream = (peer(host, name) for name in ("to_cute", "dynamic_view", "stream"))
    code = compile_consumer(BLOCKS, True, -1, False, 0, 0, peer(host, "architecture")(weights[0].device))
    eps = peer("cutlass", "Float32")(EPS)
    views = [to_cute(w) for w in weights]

    def bind(prefix, delta, blocks, out):
        tensors = [view(t) for t in (delta, prefix, blocks)]
        return lambda: code(*tensors, *views, view(out), eps, eps, stream(out.device))

    return bind


if __name__ == "__main__":
    main("attn_res", cases)
