"""Time Kimi K3's projections against cuBLAS and vLLM's kernels: `python -m runtime.kernels.skinny_gemm.bench`."""

from collections.abc import Iterator

import torch

from runtime.kernels.common.launch.device import H200, Device
from runtime.kernels.common.maths.activations import situ
from runtime.kernels.common.workshop.bench import Case, buffer_sets, main, peer
from runtime.kernels.skinny_gemm.dispatch import SkinnyGemm, plan_of
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec
from runtime.kernels.skinny_gemm.table import PLANS

LOW_LATENCY = "vllm.models.kimi_k3.nvidia.low_latency_gemm"
ROUTER = "vllm.model_executor.kernels.linear.cute_dsl.ll_bf16"


def cases() -> Iterator[Case]:
    """Every weight of the table at 1…64 rows; "k3" is the kernel, "auto" what dispatch takes."""
    router = peer(ROUTER, "LLBf16Gemm")
    router = router() if router else None
    for n, k, epilogue in PLANS[H200]:
        spec = SkinnyGemmSpec(n, k, epilogue)
        weights = [
            (torch.randn(n, k, device="cuda") / k**0.5).bfloat16() for _ in range(buffer_sets(n * k * 2, 24))
        ]
        for rows in (1, 2, 4, 8, 16, 32, 64):
            yield _case(spec, weights, rows, router)


def _case(spec, weights, rows, router):
    x = torch.randn(rows, spec.k, device="cuda").bfloat16()
    out = torch.empty(rows, spec.columns, device="cuda", dtype=spec.out_dtype)
    ops = {"auto": [SkinnyGemm(spec, w) for w in weights]}
    if plan_of(spec, Device(H200, "sm_90a")).bucket(rows) is not None:
        ops["k3"] = [SkinnyGemm(spec, w, provider="cute") for w in weights]
    calls = {name: [lambda op=op: op(x, out) for op in bound] for name, bound in ops.items()}
    calls["cublas"] = [lambda w=w: _cublas(spec, x, w, out) for w in weights]
    plan = _vllm_plan(spec)
    if rows in plan:
        run = peer(LOW_LATENCY, "_run_plan")
        calls[f"vllm-{plan[rows][0]}"] = [lambda w=w: run(plan, x, w) for w in weights]
    if router and spec.epilogue == "fp32":
        calls["vllm-router"] = [lambda w=w: router(x, w) for w in weights]
    moved = spec.n * spec.k * 2 + rows * (spec.k * 2 + spec.columns * out.element_size())
    values = {"n": spec.n, "k": spec.k, "epilogue": spec.epilogue, "rows": rows}
    return Case(values, moved, calls, ours="k3" if "k3" in ops else "auto", min_calls=16)


def _cublas(spec, x, w, out):
    if spec.epilogue == "fp32":
        return torch.mm(x, w.T, out_dtype=torch.float32)
    if spec.epilogue == "bf16":
        return torch.mm(x, w.T, out=out)
    return situ(*torch.chunk(torch.mm(x, w.T), 2, dim=-1))


def _vllm_plan(spec):
    """vLLM's Hopper table for this weight: rows -> (backend, configuration)."""
    table, build = peer(LOW_LATENCY, "KIMI_K3_PROJECTIONS_SM90"), peer(LOW_LATENCY, "_build_plan")
    if table is None or spec.epilogue != "bf16" or (spec.n, spec.k) not in table:
        return {}
    return build(table[spec.n, spec.k])


if __name__ == "__main__":
    main("skinny_gemm", cases)
