"""What a CUDA graph under capture holds so far, asked of the capture itself.

vLLM drops the raw graph when a capture ends, so a kernel that was launched into it can only be counted before.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

logger = logging.getLogger("vllm.k3_runtime")


def kernels() -> list[str] | None:
    """Names of the kernels captured so far on the current stream and its forks, in the order they were added.

    None when nothing is being captured or CUDA's Python bindings cannot answer.
    """
    try:
        return [_name(node) for node in _kernel_nodes()]
    except Exception as error:  # counting must never end a capture
        logger.debug("k3 runtime: the capture's kernels are unknown (%r)", error)
        return None


def count() -> int | None:
    """How many nodes the capture holds so far (kernels, copies, fills); None as in ``kernels``."""
    try:
        cudart, graph = _graph()
        return int(_ask(cudart.cudaGraphGetNodes(graph))[-1])
    except Exception as error:
        logger.debug("k3 runtime: the capture's nodes are unknown (%r)", error)
        return None


def per_layer(counts: list[int | None], kinds: list[str]) -> dict[str, int]:
    """Nodes per layer by kind, from the counts at every layer's start and at the end: the most common of a kind."""
    found: dict[str, Counter[int]] = {}
    for kind, before, after in zip(kinds, counts, counts[1:], strict=False):
        if before is not None and after is not None:
            found.setdefault(kind, Counter())[after - before] += 1
    return {kind: seen.most_common(1)[0][0] for kind, seen in found.items()}


def _graph() -> tuple[Any, Any]:
    import torch
    from cuda.bindings import runtime as cudart

    found = _ask(cudart.cudaStreamGetCaptureInfo(torch.cuda.current_stream().cuda_stream))
    status, graph = found[0], found[2]
    if status != cudart.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive:
        raise RuntimeError("no capture")
    return cudart, graph


def _kernel_nodes() -> list[Any]:
    cudart, graph = _graph()
    total = int(_ask(cudart.cudaGraphGetNodes(graph))[-1])
    nodes = _ask(cudart.cudaGraphGetNodes(graph, total))[0]
    kernel = cudart.cudaGraphNodeType.cudaGraphNodeTypeKernel
    return [node for node in nodes if _ask(cudart.cudaGraphNodeGetType(node))[0] == kernel]


def _name(node: Any) -> str:
    from cuda.bindings import driver

    parameters = _ask(driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(int(node))))[0]
    if int(parameters.func):
        return _text(_ask(driver.cuFuncGetName(parameters.func))[0])
    return _text(_ask(driver.cuKernelGetName(parameters.kern))[0])


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _ask(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a call, or an error that names its status."""
    if int(answer[0]) != 0:
        raise RuntimeError(str(answer[0]))
    return answer[1:]
