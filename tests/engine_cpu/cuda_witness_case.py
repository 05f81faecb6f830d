"""Child process: vLLM's real CUDA runner modules, imported without a GPU, with the witness installed on them."""

from __future__ import annotations

import contextlib
import json
import sys
import timeit
from types import SimpleNamespace
from unittest.mock import MagicMock


def mock_packages() -> None:
    """CuTe DSL and friends are not installed here; the module under test only needs their names."""
    import importlib.abc
    import importlib.machinery
    import types

    roots = ("cutlass", "quack", "tokenspeed_mla", "flashinfer", "cuda")

    class Module(types.ModuleType):
        __path__ = ()

        def __getattr__(self, name: str):
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=f"{self.__name__}.{name}")

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in roots:
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
            return None

        def create_module(self, spec):
            return Module(spec.name)

        def exec_module(self, module):
            pass

    sys.meta_path.insert(0, Finder())


def main() -> None:
    from runtime.offline.stub_cuda import Gpu, install

    install(Gpu())
    from vllm import triton_utils

    triton_utils.HAS_TRITON = False  # the runner's modules look inside it when it claims to be there
    import xgrammar  # noqa: F401  # looks at `cuda` itself: before that is a mock

    mock_packages()
    import numpy as np
    import torch
    from vllm.config import CUDAGraphMode
    from vllm.models.kimi_k3.nvidia.specialized_decode import runtime as specialized
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from runtime.witness import cuda as cuda_witness

    config = SimpleNamespace(
        additional_config={"decode_backend": "latency_specialized"},
        parallel_config=SimpleNamespace(rank=2),
        num_speculative_tokens=7,
    )
    from vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode import SpecializedDecode

    specialized.unsupported = lambda asked: "this GPU (SM100/103)" if asked is config else None
    unavailable = cuda_witness.install(config).page.about["unavailable"]
    assert not hasattr(SpecializedDecode.plan, "_k3_witnessed")
    specialized.unsupported = lambda asked: None
    recorder = cuda_witness.install(config)

    def desc(tokens: int, mode: CUDAGraphMode = CUDAGraphMode.FULL) -> BatchExecutionDescriptor:
        return BatchExecutionDescriptor(mode, tokens, tokens // 8, 8)

    # capture: vLLM asks for the stream of the descriptor, then the model asks plan(); the real plan() answers None
    # outside a capture, so an answer is put in its place under the wrapper
    manager = SimpleNamespace(ubatch_runner=None)
    answers = {8: object(), 64: object(), 128: None}
    torch.cuda.is_available = lambda: False
    import vllm.v1.worker.gpu.cudagraph_utils as utils

    utils.current_stream = lambda: None
    assert SpecializedDecode.plan._k3_witnessed.__qualname__ == "SpecializedDecode.plan"
    for tokens, answer in answers.items():
        CudaGraphManager._capture_stream(manager, desc(tokens))
        recorder.captured(answer)

    def state(requests: int, tokens: int, prefilling: list[bool], name: str = "r"):
        return SimpleNamespace(
            req_ids=[name] * requests,
            num_tokens=tokens,
            has_prefill=any(prefilling),
            is_prefilling_np=np.array(prefilling),
        )

    def step(descriptor, request_state) -> None:
        # the real method goes on with a runner we do not have; the step was counted before
        with contextlib.suppress(AttributeError):
            GPUModelRunner.prepare_inputs(SimpleNamespace(), None, request_state, descriptor, 0)

    step(desc(8), state(1, 8, [False]))
    step(desc(8), state(1, 8, [False]))
    step(desc(64), state(8, 64, [False] * 8))
    step(desc(128), state(9, 72, [False] * 9))
    step(desc(32), state(4, 32, [False] * 4))  # never captured as specialized
    step(desc(40, CUDAGraphMode.PIECEWISE), state(3, 40, [False, False, True]))
    step(desc(400, CUDAGraphMode.NONE), state(1, 400, [True]))
    step(desc(12, CUDAGraphMode.PIECEWISE), state(2, 12, [False, False]))
    # a graph for any mixture (cudagraph_mode=FULL) is asked at every step what it holds
    mixture = BatchExecutionDescriptor(CUDAGraphMode.FULL, 256, 64)
    for prefilling in ([False, True], [True, True], [False, False], [False, True]):
        step(mixture, state(2, 200, prefilling))
    # decodes of any length below the bound
    varlen = BatchExecutionDescriptor(CUDAGraphMode.FULL, 48, 48, None, 8)
    step(varlen, state(7, 40, [False] * 7))
    # requests that vLLM makes up while it starts
    step(desc(6, CUDAGraphMode.NONE), state(3, 6, [True] * 3, "_warmup_0_"))
    page = recorder.page.page()
    recorder.step(SimpleNamespace(), None)  # an unknown shape is reported, not raised
    result = {
        "page": page,
        "unavailable": unavailable,
        "known_after_fault": recorder.page.about["known_build"],
        "step_ns": cost_ns(cuda_witness, recorder, desc(8), state(1, 8, [False])),
        "warm_up_names_are_vllms": all(f'"{name}' in warm_up_source() for name in cuda_witness._WARM_UP),
        "foreign_seam": other_parameters(cuda_witness, recorder),
    }
    sys.stdout.write("RESULT" + json.dumps(result) + "\n")


def cost_ns(cuda_witness, recorder, desc, state) -> float:
    """What counting adds to one call of ``prepare_inputs``."""

    def prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras):
        return None

    counting = cuda_witness.counted(prepare_inputs, recorder)

    def best(call) -> float:
        return (
            1e9
            * min(timeit.repeat(lambda: call(None, None, state, desc, 0), number=5_000, repeat=40))
            / 5_000
        )

    return best(counting) - best(prepare_inputs)


def warm_up_source() -> str:
    import inspect

    from vllm.v1.worker.gpu import warmup

    return inspect.getsource(warmup)


def other_parameters(cuda_witness, recorder) -> str:
    """What a ``prepare_inputs`` of other parameters is answered with."""
    try:
        cuda_witness.counted(lambda self, batch: None, recorder)
    except AttributeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
