"""vLLM's own CUDA runner, graph managers and K3 model on a machine without CUDA: only the device is faked.

What decides and what loops is vLLM's code: ``ModelCudaGraphManager.capture``, ``CudaGraphManager.dispatch`` and
``run_fullgraph``, ``GPUModelRunner.execute_model``, ``KimiLinearForCausalLM.forward`` and ``SpecializedDecode.plan``.
Faked are the stream (is it being captured?), graphs (which do nothing when replayed), and whatever would compute.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


class Stream:
    """The one fact about CUDA that ``plan`` asks for."""

    capturing = False


def mock_packages() -> None:
    """CuTe DSL and friends are not installed here; the modules under test only need their names."""
    roots = ("cutlass", "quack", "tokenspeed_mla", "flashinfer", "cuda")

    class Module(types.ModuleType):
        __path__ = ()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=f"{self.__name__}.{name}")

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name.split(".", maxsplit=1)[0] in roots:
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
            return None

        def create_module(self, spec: Any) -> types.ModuleType:
            return Module(spec.name)

        def exec_module(self, module: types.ModuleType) -> None:
            pass

    sys.meta_path.insert(0, Finder())


def fake_cuda() -> None:
    """Describe a GPU to vLLM, import its runner, and put a stream in place that only knows whether it captures."""
    from runtime.offline.stub_cuda import Gpu, install

    install(Gpu())
    from vllm import triton_utils

    triton_utils.HAS_TRITON = False  # the runner's modules look inside it when it claims to be there
    import xgrammar  # noqa: F401  # looks at `cuda` itself: before that is a mock

    mock_packages()
    import torch

    class Graph:
        def capture_begin(self, **_: Any) -> None:
            assert not Stream.capturing, "captures do not nest"
            Stream.capturing = True

        def capture_end(self) -> None:
            Stream.capturing = False

        def replay(self) -> None:
            assert not Stream.capturing

    @contextlib.contextmanager
    def graph(captured: Graph, *_args: Any, **_kwargs: Any) -> Iterator[None]:
        captured.capture_begin()
        try:
            yield
        finally:
            captured.capture_end()

    torch.cuda.CUDAGraph = Graph
    torch.cuda.graph = graph
    torch.cuda.is_current_stream_capturing = lambda: Stream.capturing
    torch.accelerator.synchronize = lambda *_: None
    torch.accelerator.empty_cache = lambda *_: None
    from vllm.platforms import current_platform

    type(current_platform)._global_graph_pool = (0, 0)
    _fake_groups()


def _fake_groups() -> None:
    import vllm.compilation.breakable_cudagraph as breakable
    import vllm.compilation.cuda_graph as v1_graphs
    import vllm.v1.worker.gpu.cudagraph_utils as utils

    @contextlib.contextmanager
    def anything(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        yield None

    offloader = MagicMock()
    for module in (utils, v1_graphs, breakable):
        module.capture_pool = anything
        module.current_stream = lambda: None
        module.get_offloader = lambda: offloader
        module.validate_cudagraph_capturing_enabled = lambda: None
        module.weak_ref_tensors = module.weak_ref_tensor = lambda value: value
    utils.graph_capture = anything
    utils.is_global_first_rank = lambda: False


def pipeline_stage(rank: int, stages: int) -> None:
    """Which stage of a pipeline the managers that are made from now on believe to be on."""
    import vllm.v1.worker.gpu.cudagraph_utils as utils

    group = SimpleNamespace(is_first_rank=rank == 0, is_last_rank=rank == stages - 1)
    utils.get_pp_group = lambda: group


def vllm_config(sizes: Sequence[int], *, seqs: int = 64, drafts: int = 0, rank: int = 0) -> Any:
    """As much of a vLLM configuration as the graph managers, the forward context and the witness read."""
    from vllm.config import CUDAGraphMode

    return SimpleNamespace(
        additional_config={"decode_backend": "latency_specialized"},
        parallel_config=SimpleNamespace(
            rank=rank, world_size=8, tensor_parallel_size=8, data_parallel_size=1, use_sequence_parallel_moe=False,
            is_moe_model=True, pipeline_parallel_size=1, use_ubatching=False,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=seqs),
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=list(sizes), max_cudagraph_capture_size=max(sizes, default=0),
            static_forward_context={}, fast_moe_cold_start=False, static_all_moe_layers=[],
            cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY, cudagraph_specialize_lora=True, compile_sizes=[],
            is_attention_compiled_piecewise=lambda: True,
        ),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        speculative_config=None, lora_config=None, num_speculative_tokens=drafts, use_cumem_cudagraph_pool=False,
    )  # fmt: skip


LAYERS = ("model.layers.0.self_attn", "model.layers.1.self_attn")


class ModelState:
    """Attention metadata as K3's builders would describe a batch: how many of its requests decode."""

    num_new_sampled_tokens_per_step = 1
    supports_mm_inputs = False

    def __init__(self, query_len: int) -> None:
        self.query_len = query_len

    def prepare_dummy_inputs(self, *_: Any) -> dict[str, Any]:
        return {}

    def prepare_inputs(self, *_: Any) -> dict[str, Any]:
        return {}

    def preprocess_state(self, *_: Any) -> None:
        return None

    def prepare_attn(self, batch: Any, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        lengths = [int(n) for n in batch.num_scheduled_tokens]
        decodes = [n for n in lengths if n <= self.query_len]
        metadata = SimpleNamespace(
            num_prefills=len(lengths) - len(decodes), num_decodes=len(decodes), num_decode_tokens=sum(decodes)
        )
        if self.query_len > 1:
            import torch

            metadata.num_spec_decodes = len(decodes)
            metadata.num_spec_decode_tokens = sum(decodes)
            metadata.num_decodes = 0
            metadata.spec_state_indices_tensor = torch.zeros(len(lengths), self.query_len)
        return dict.fromkeys(LAYERS, metadata)


def k3_model(query_len: int = 1, *, last: bool = True) -> Any:
    """vLLM's K3 with its own ``forward`` and ``SpecializedDecode.plan``; nothing is computed.

    ``last``: it is the last stage of its pipeline and returns hidden states.
    """
    import torch
    from vllm.models.kimi_k3.nvidia.model import KimiLinearForCausalLM
    from vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode import SpecializedDecode
    from vllm.sequence import IntermediateTensors

    decode = SpecializedDecode.__new__(SpecializedDecode)
    decode.q = query_len
    decode.batches = tuple(sorted({1, 2, 4, 8, 16, 32, 64, *(n * query_len for n in (1, 2, 4, 8))}))
    decode.layers = tuple(SimpleNamespace(self_attn=SimpleNamespace(prefix=name)) for name in LAYERS)
    decode.run = lambda step, input_ids, inputs_embeds: torch.zeros(input_ids.shape[0], 1)
    decode.normalize = lambda hidden: hidden

    def backbone(_ids: Any, positions: Any, *_: Any) -> Any:
        hidden = torch.zeros(positions.shape[0], 1)
        return hidden if last else IntermediateTensors({"hidden_states": hidden})

    class Model(KimiLinearForCausalLM):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.specialized_decode = decode
            self.needs_norm_in_logits = False

        def __getattr__(self, name: str) -> Any:
            return backbone if name == "model" else super().__getattr__(name)

    return Model()


def buffers(tokens: int = 512, requests: int = 64) -> Any:
    """vLLM's own input buffers, on the CPU."""
    import torch
    from vllm.v1.worker.gpu.input_batch import InputBuffers

    return InputBuffers(max_num_reqs=requests, max_num_tokens=tokens, device=torch.device("cpu"))


def block_tables() -> Any:
    return SimpleNamespace(
        cp_size=1, get_dummy_block_tables=lambda *_: (), get_dummy_slot_mappings=lambda *_: (),
        apply_staged_writes=lambda: None,
    )  # fmt: skip


def runner(config: Any, model: Any, *, drafts: int = 0) -> Any:
    """vLLM's V2 runner without a device: ``execute_model``, dispatch, capture and replay are its own."""
    import numpy as np
    import torch
    from vllm.config import CUDAGraphMode
    from vllm.sequence import IntermediateTensors
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    nothing = MagicMock()

    class Runner(GPUModelRunner):
        def __init__(self) -> None:
            self.vllm_config, self.model = config, model
            self.decode_query_len = 1 + drafts
            self.model_state = ModelState(1 + drafts)
            self.input_buffers, self.block_tables = buffers(), block_tables()
            self.kv_cache_config = SimpleNamespace(kv_cache_groups=[], num_blocks=8)
            self.attn_groups: list[Any] = []
            self.cache_config = config.cache_config
            self.compilation_config = config.compilation_config
            self.new_graphs(CUDAGraphMode.FULL_DECODE_ONLY)
            self.req_states = SimpleNamespace(
                req_id_to_index={}, prefill_len=SimpleNamespace(np=np.zeros(512, np.int32)),
                num_computed_prefill_tokens=np.zeros(512, np.int32),
                num_computed_tokens=SimpleNamespace(gpu=None), max_seq_len=np.zeros(512, np.int32),
            )  # fmt: skip
            self.execute_model_state = None
            self.intermediate_tensors = None
            if not self.is_first_pp_rank:
                self.intermediate_tensors = IntermediateTensors({"hidden_states": torch.zeros(512, 1)})

        def __getattr__(self, name: str) -> Any:
            flags = {
                "encoder_cache", "aux_output_connector", "pcp_manager", "lora_config", "ubatch_runner",
                "adaptive_verification", "is_encoder_decoder", "uses_inputs_embeds",
                "use_aux_hidden_state_outputs", "use_pp", "needs_cudagraph", "supports_mm_inputs", "speculator",
            }  # fmt: skip
            if name in flags:
                return None
            numbers = {"dp_size": 1, "dp_rank": 0, "dcp_size": 1, "max_num_reqs": 64}
            return numbers.get(name, nothing)

        @property
        def dp_size(self) -> int:
            return 1

        @property
        def dp_rank(self) -> int:
            return 0

        def new_graphs(self, mode: Any) -> None:
            self.cudagraph_manager = ModelCudaGraphManager(
                config, torch.device("cpu"), mode, decode_query_len=1 + drafts
            )
            self.is_first_pp_rank = self.cudagraph_manager.is_first_pp_rank
            self.is_last_pp_rank = self.cudagraph_manager.is_last_pp_rank

        def capture(self) -> None:
            self.cudagraph_manager.capture(
                self.model, self.model_state, self.input_buffers, self.intermediate_tensors, self.block_tables,
                self.attn_groups, self.kv_cache_config,
            )  # fmt: skip

        def serve(self, *requests: tuple[int, int, int], drafts: int = 0, name: str = "r") -> None:
            """One step. Each request: its scheduled tokens, prompt tokens computed before, prompt length."""
            from vllm.v1.core.sched.output import SchedulerOutput

            output = SchedulerOutput.make_empty()
            for i, (tokens, computed, prompt) in enumerate(requests):
                request = f"{name}{i}"
                self.req_states.req_id_to_index[request] = i
                self.req_states.prefill_len.np[i] = prompt
                self.req_states.num_computed_prefill_tokens[i] = min(computed, prompt)
                output.num_scheduled_tokens[request] = tokens
                if drafts and computed >= prompt:
                    output.scheduled_spec_decode_tokens[request] = [0] * (tokens - 1)
            output.total_num_scheduled_tokens = sum(tokens for tokens, *_ in requests)
            self.execute_model(output, intermediate_tensors=self.intermediate_tensors)

        def dummy(self, tokens: int) -> None:
            """A step that serves nobody: vLLM runs them for data parallelism and to warm up."""
            from vllm.v1.core.sched.output import SchedulerOutput

            output = SchedulerOutput.make_empty()
            output.num_scheduled_tokens = {f"_dummy_req_{i}": 1 for i in range(tokens)}
            output.total_num_scheduled_tokens = tokens
            self.execute_model(output, dummy_run=True)

    for name in (
        "update_pp_decode_requests",
        "finish_requests",
        "free_states",
        "add_requests",
        "update_requests",
    ):
        setattr(Runner, name, lambda *_, **__: None)
    Runner.prepare_attn = lambda self, batch: ((), ())
    Runner.prepare_dummy_attn = lambda self, batch, *_: ((), ())
    return Runner()


def without_device(runner_class: Any) -> None:
    """Replace the one method of the runner that copies to the GPU, with its own parameters."""
    from vllm.v1.worker.gpu.input_batch import InputBatch

    def prepare_inputs(
        self: Any, scheduler_output: Any, batch_req_state: Any, batch_desc: Any, num_active_loras: int
    ) -> Any:
        state = batch_req_state
        lengths = state.num_scheduled_tokens
        requests = batch_desc.num_reqs or len(lengths)
        tokens = max(batch_desc.num_tokens, state.num_tokens)
        batch = InputBatch.make_dummy(max(requests, len(lengths)), tokens, self.input_buffers)
        batch.num_scheduled_tokens = lengths
        return batch

    runner_class.prepare_inputs = prepare_inputs
