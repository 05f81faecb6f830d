"""Environment variables that quietly change how K3 runs."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Applies, Area, Hit, Severity, Source, rule
from k3ctl.checks.products import GPU_KINDS
from k3ctl.checks.view import NodeView

CUMEM = Source("https://github.com/vllm-project/vime/pull/103", "2026-06-01")
ENV_DOC = Source("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html", "2026-11")
SPECIALIZED_CHECK = Source(
    "https://github.com/vllm-project/vllm/tree/v0.33.0/vllm/models/kimi_k3/nvidia/specialized_decode",
    "2026-11",
    "conditions of the specialized decode path",
)
SLOW_LOAD = Source("https://github.com/vllm-project/vllm/issues/48031", "2026-07-08")
VLLM_033 = Applies("vLLM", "0.33.0")
READY_S = 1900
"""A cold load of K3 from network storage was seen to need more than half an hour."""


def _where(view: NodeView, name: str) -> str:
    setting = view.settings[name]
    return f"{name}={setting.value}" + (f", set by {setting.origin}" if setting.origin else "")


@rule(
    "env.mnnvl-disabled",
    Severity.FAIL,
    Area.MULTI_NODE,
    "NCCL may not use NVLink between trays",
    blocks="every group over more than one tray: NCCL falls back to the network",
    remedy="unset NCCL_MNNVL_ENABLE",
    sources=(ENV_DOC, CUMEM),
    kinds=GPU_KINDS,
)
def mnnvl(view: NodeView) -> Iterator[Hit]:
    if view.setting("NCCL_MNNVL_ENABLE") == "0":
        yield Hit(_where(view, "NCCL_MNNVL_ENABLE"))


@rule(
    "env.p2p-disabled",
    Severity.FAIL,
    Area.NVLINK,
    "NCCL may not use peer access",
    blocks="NVLink between the GPUs of a host",
    remedy="unset NCCL_P2P_DISABLE (and NCCL_P2P_LEVEL)",
    sources=(ENV_DOC,),
    kinds=GPU_KINDS,
)
def p2p(view: NodeView) -> Iterator[Hit]:
    if view.setting("NCCL_P2P_DISABLE") not in ("", "0"):
        yield Hit(_where(view, "NCCL_P2P_DISABLE"))
    if view.setting("NCCL_P2P_LEVEL").upper() in ("LOC", "0"):
        yield Hit(_where(view, "NCCL_P2P_LEVEL"))


@rule(
    "env.v1-runner",
    Severity.FAIL,
    Area.ENGINE,
    "The old model runner is forced",
    blocks="the specialized decode path and DSpark speculation",
    remedy="unset VLLM_USE_V2_MODEL_RUNNER",
    sources=(SPECIALIZED_CHECK,),
    applies=VLLM_033,
    kinds=GPU_KINDS,
)
def v1_runner(view: NodeView) -> Iterator[Hit]:
    if view.setting("VLLM_USE_V2_MODEL_RUNNER") == "0":
        yield Hit(_where(view, "VLLM_USE_V2_MODEL_RUNNER"))


@rule(
    "env.aux-stream",
    Severity.WARN,
    Area.ENGINE,
    "The attention-residual side stream is forced on",
    blocks="the specialized decode path together with speculation",
    remedy="unset VLLM_KIMI_K3_AUX_ATTN_RES_STREAM",
    sources=(SPECIALIZED_CHECK,),
    applies=VLLM_033,
    kinds=GPU_KINDS,
)
def aux_stream(view: NodeView) -> Iterator[Hit]:
    if view.setting("VLLM_KIMI_K3_AUX_ATTN_RES_STREAM") not in ("", "0"):
        yield Hit(_where(view, "VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"))


@rule(
    "env.batch-invariant",
    Severity.WARN,
    Area.MULTICAST,
    "Batch-invariant mode is on",
    blocks="NCCL's NVLS: vLLM then sets NCCL_NVLS_ENABLE=0 itself",
    remedy="unset VLLM_BATCH_INVARIANT for performance runs",
    sources=(SPECIALIZED_CHECK,),
    applies=VLLM_033,
    kinds=GPU_KINDS,
)
def batch_invariant(view: NodeView) -> Iterator[Hit]:
    if view.setting("VLLM_BATCH_INVARIANT") not in ("", "0"):
        yield Hit(_where(view, "VLLM_BATCH_INVARIANT"))


@rule(
    "env.ready-timeout",
    Severity.WARN,
    Area.ENGINE,
    "The start-up time limit is too short for K3",
    blocks="a start from slow storage: vLLM gives up while the weights still load",
    remedy=f"set VLLM_ENGINE_READY_TIMEOUT_S to {READY_S} or more, or leave it to `k3ctl serve`",
    sources=(SLOW_LOAD, Source("https://github.com/vllm-project/vllm/pull/35616", "2026-02-28")),
    kinds=GPU_KINDS,
)
def ready_timeout(view: NodeView) -> Iterator[Hit]:
    value = view.setting("VLLM_ENGINE_READY_TIMEOUT_S")
    if value.isdigit() and int(value) < READY_S:
        yield Hit(_where(view, "VLLM_ENGINE_READY_TIMEOUT_S"))


@rule(
    "env.hf-home-in-home",
    Severity.INFO,
    Area.STORAGE,
    "The Hugging Face cache is in the home directory",
    blocks="",
    remedy="point HF_HUB_CACHE to a local disk with 1.6 TB free; home directories are often small or on NFS",
    sources=(Source("https://github.com/raullenchai/Rapid-MLX/pull/275", "2026-05-07"),),
    kinds=GPU_KINDS,
)
def hf_home(view: NodeView) -> Iterator[Hit]:
    if view.setting("HF_HUB_CACHE"):
        return
    value = view.setting("HF_HOME")
    if value.startswith(("/home/", "/root/", "~")):
        yield Hit(_where(view, "HF_HOME"))
