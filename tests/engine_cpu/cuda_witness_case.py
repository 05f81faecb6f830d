"""Child process: scenarios of vLLM's real CUDA runners on a faked stream, counted by the witness."""

from __future__ import annotations

import inspect
import json
import sys
import timeit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.engine_cpu import cuda_runner as fake

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MARK = "_k3_witnessed"
WITHOUT: list[str] = []
REAL: dict[str, Any] = {}


def recorder_of(config: Any) -> Any:
    """The witness, installed; without the seam that ``WITHOUT`` names."""
    from runtime.witness import cuda

    recorder = cuda.install(config)
    for owner, name in (seams()[seam] for seam in WITHOUT):
        setattr(owner, name, getattr(vars(owner)[name], MARK))
    return recorder


def counted(recorder: Any) -> dict[str, list[int]]:
    return {
        " ".join(filter(None, (s["path"], s["kind"], s["mode"], s["reason"], s["slots"]))): [
            s["steps"],
            s["rows"],
            s["tokens"],
        ]
        for s in recorder.page.page()["steps"]
    }


def decodes(runner: Any, *batches: int, tokens: int = 1) -> None:
    for requests in batches:
        runner.serve(*[(tokens, 9, 5)] * requests, drafts=tokens - 1)


def serving() -> dict[str, Any]:
    """Largest first with a warm-up each, then eager prefills and dummy steps between decodes."""
    fake.pipeline_stage(0, 1)
    config = fake.vllm_config(SIZES, seqs=128)
    recorder = recorder_of(config)
    runner = fake.runner(config, fake.k3_model())
    runner.serve((6, 0, 6), (6, 0, 6), name="_warmup_0_")
    runner.capture()
    decodes(runner, 1, 1, 64)
    runner.serve((5, 0, 5))
    runner.dummy(4)
    decodes(runner, 1, 2, 3, 8, 64, 100)
    runner.serve((1, 9, 5), (40, 0, 40))
    decodes(runner, 1)
    return {"steps": counted(recorder), "graphs": [row["tokens"] for row in recorder.graphs()]}


def verify_steps() -> dict[str, Any]:
    """Speculation: eight tokens a request, uniform or not."""
    fake.pipeline_stage(0, 1)
    config = fake.vllm_config((8, 16, 32, 64, 128), drafts=7)
    recorder = recorder_of(config)
    runner = fake.runner(config, fake.k3_model(8), drafts=7)
    runner.capture()
    runner.serve((5, 0, 5))
    decodes(runner, 1, 8, 9, tokens=8)
    runner.serve((8, 9, 5), (6, 9, 5), drafts=7)
    return {"steps": counted(recorder), "graphs": [row["tokens"] for row in recorder.graphs()]}


def drafter() -> dict[str, Any]:
    """A drafter's graphs, captured after the target's under equal descriptors, by a model that is not specialized."""
    import torch
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import set_forward_context
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorCudaGraphManager

    fake.pipeline_stage(0, 1)
    config = fake.vllm_config(SIZES)
    recorder = recorder_of(config)
    runner = fake.runner(config, fake.k3_model())
    runner.capture()
    draft = fake.k3_model()
    draft.specialized_decode.batches = ()
    manager = SpeculatorCudaGraphManager(
        config, torch.device("cpu"), CUDAGraphMode.FULL_DECODE_ONLY, decode_query_len=1
    )

    def forward(
        requests: int, tokens: int, metadata: Any, slots: Any, across: Any, mode: Any, **_: Any
    ) -> None:
        with set_forward_context(metadata, config, num_tokens=tokens, cudagraph_runtime_mode=mode):
            buffers = runner.input_buffers
            draft(input_ids=buffers.input_ids[:tokens], positions=buffers.positions[:tokens])

    manager.capture(
        forward, runner.model_state, runner.input_buffers, runner.block_tables, [], runner.kv_cache_config
    )
    equal = set(manager.graphs) & set(runner.cudagraph_manager.graphs)
    decodes(runner, 1, 2, 64)
    return {"steps": counted(recorder), "equal descriptors": len(equal)}


def released() -> dict[str, Any]:
    """Graphs released and captured again, with another answer of the model each time."""
    fake.pipeline_stage(0, 1)
    config = fake.vllm_config(SIZES)
    recorder = recorder_of(config)
    runner = fake.runner(config, fake.k3_model())
    batches = runner.model.specialized_decode.batches
    runner.capture()
    decodes(runner, 4)
    out = {"captured": counted(recorder)}
    runner.cudagraph_manager.release_graphs()
    decodes(runner, 4)
    out["released"] = counted(recorder)
    runner.model.specialized_decode.batches = ()
    runner.capture()
    decodes(runner, 4)
    out["stock"] = counted(recorder)
    runner.cudagraph_manager.release_graphs()
    runner.model.specialized_decode.batches = batches
    runner.capture()
    decodes(runner, 4)
    return {**out, "again": counted(recorder)}


def profiled() -> dict[str, Any]:
    """Memory profiling captures the largest graphs of a throw-away manager, the worker the real ones."""
    from vllm.config import CUDAGraphMode

    fake.pipeline_stage(0, 1)
    config = fake.vllm_config(SIZES)
    recorder = recorder_of(config)
    runner = fake.runner(config, fake.k3_model())
    runner.cudagraph_manager._max_full_descs_to_capture = 2
    runner.capture()
    profiled_graphs = [row["tokens"] for row in recorder.graphs()]
    runner.new_graphs(CUDAGraphMode.FULL_DECODE_ONLY)
    runner.model.specialized_decode.batches = (1,)
    runner.capture()
    decodes(runner, 1, 64)
    return {
        "steps": counted(recorder),
        "graphs": [profiled_graphs, [row["tokens"] for row in recorder.graphs()]],
    }


def piecewise() -> dict[str, Any]:
    """Breakable piecewise graphs, captured before the full ones, and again after a release."""
    import vllm.v1.worker.gpu.cudagraph_utils as utils
    from vllm.config import CUDAGraphMode

    fake.pipeline_stage(0, 1)
    config = fake.vllm_config(SIZES)
    recorder = recorder_of(config)
    runner = fake.runner(config, fake.k3_model())
    real, utils.is_breakable_cudagraph_enabled = utils.is_breakable_cudagraph_enabled, lambda: True
    runner.new_graphs(CUDAGraphMode.FULL_AND_PIECEWISE)
    utils.is_breakable_cudagraph_enabled = real
    runner.capture()
    decodes(runner, 1, 8)
    runner.cudagraph_manager.release_graphs()
    runner.capture()
    decodes(runner, 1, 8)
    runner.serve((1, 9, 5), (40, 0, 40))
    runner.serve((300, 0, 300))
    return {"steps": counted(recorder)}


def any_mixture() -> dict[str, Any]:
    """``cudagraph_mode=FULL``: one graph for any mixture. The step says what it holds, the graph what runs."""
    from vllm.config import CUDAGraphMode

    fake.pipeline_stage(0, 1)
    config = fake.vllm_config((128,))
    recorder = recorder_of(config)
    runner = fake.runner(config, fake.k3_model())
    runner.new_graphs(CUDAGraphMode.FULL)
    runner.capture()
    runner.serve((1, 9, 5), (40, 0, 40))
    runner.serve((40, 0, 40), (41, 0, 41))
    decodes(runner, 65)
    runner.serve((1, 9, 5), (41, 0, 41))
    return {"steps": counted(recorder)}


def stages() -> dict[str, Any]:
    """Two pipeline stages. vLLM's own path gives up on the second; an executor of ours need not."""
    out: dict[str, Any] = {}
    for own in (False, True):
        for rank in (0, 1):
            fake.pipeline_stage(rank, 2)
            config = fake.vllm_config(SIZES, rank=rank)
            if own:
                config.additional_config = {"k3_decode": "hopper"}
            recorder = recorder_of(config)
            model = fake.k3_model(last=rank == 1)
            decode = executor(last=rank == 1) if own else model.specialized_decode
            model.specialized_decode = decode
            if not own and rank == 0:
                run = decode.run
                decode.run = lambda *args, run=run: intermediate(run(*args))
            runner = fake.runner(config, model)
            runner.capture()
            runner.serve((5, 0, 5))
            decodes(runner, 1, 2)
            out[f"{'own' if own else 'vllm'} {rank}"] = counted(recorder)
    return out


def intermediate(hidden: Any) -> Any:
    from vllm.sequence import IntermediateTensors

    return IntermediateTensors({"hidden_states": hidden})


def executor(*, last: bool = True) -> Any:
    """An executor of our own on vLLM's seam: it plans captures of up to eight rows, two slots being its own."""
    import torch

    from runtime import witness

    class Executor:
        def plan(self, positions: Any, intermediate_tensors: Any) -> Any:
            rows = positions.shape[0]
            step = rows if rows <= 8 and torch.cuda.is_current_stream_capturing() else None
            witness.decide(
                witness.Content(specialized=step is not None, slots="attn_res,kda" if rows > 1 else "all")
            )
            return step

        def run(self, step: Any, input_ids: Any, inputs_embeds: Any) -> Any:
            witness.kernels({"KDA + MoE": 12.0})
            hidden = torch.zeros(step, 1)
            return hidden if last else intermediate(hidden)

        def normalize(self, hidden: Any) -> Any:
            return hidden

    return Executor()


def own_executor() -> dict[str, Any]:
    """Our executor says itself what its graphs hold."""
    fake.pipeline_stage(0, 1)
    config = fake.vllm_config((1, 2, 8, 16))
    config.additional_config = {"k3_decode": "hopper"}
    recorder = recorder_of(config)
    model = fake.k3_model()
    model.specialized_decode = executor()
    runner = fake.runner(config, model)
    runner.capture()
    runner.serve((5, 0, 5))
    decodes(runner, 1, 8, 8, 16)
    page = recorder.page.page()
    return {"steps": counted(recorder), "graphs": page["graphs"], "backend": page["decode_backend"]}


def v1_runner() -> dict[str, Any]:
    """The V1 runner: its wrapper captures at the first step of a shape, its dispatcher names the shape."""
    import numpy as np
    from vllm.compilation.cuda_graph import CUDAGraphWrapper
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import set_forward_context
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    fake.pipeline_stage(0, 1)
    config = fake.vllm_config(SIZES)
    recorder = recorder_of(config)
    model = fake.k3_model()
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_DECODE_ONLY, 1)
    runner = GPUModelRunner.__new__(GPUModelRunner)
    runner.model = CUDAGraphWrapper(model, config, CUDAGraphMode.FULL)
    state, buffers = fake.ModelState(1), fake.buffers()

    def forward(lengths: list[int], mode: Any, desc: Any, call: Callable[..., Any]) -> None:
        tokens = desc.num_tokens
        batch = SimpleNamespace(num_scheduled_tokens=lengths + [1] * (tokens - sum(lengths)))
        with set_forward_context(
            state.prepare_attn(batch),
            config,
            num_tokens=tokens,
            cudagraph_runtime_mode=mode,
            batch_descriptor=desc,
        ):
            call(input_ids=buffers.input_ids[:tokens], positions=buffers.positions[:tokens])

    def serve(*requests: tuple[int, int, int]) -> None:
        lengths = [n for n, *_ in requests]
        mode, desc = dispatcher.dispatch(sum(lengths), uniform_decode=set(lengths) == {1})
        runner.input_batch = SimpleNamespace(
            num_reqs=len(requests),
            num_computed_tokens_cpu=np.array([computed for _, computed, _ in requests]),
            num_prompt_tokens=np.array([prompt for *_, prompt in requests]),
        )
        runner.query_start_loc = SimpleNamespace(np=np.cumsum([0, *lengths]))
        forward(lengths, mode, desc, runner._model_forward)

    for mode, descs in dispatcher.get_capture_descs():
        for desc in descs:  # as ``_warmup_and_capture`` does
            forward([], CUDAGraphMode.NONE, desc, runner.model)
            forward([], mode, desc, runner.model)
    decodes_of = lambda n: serve(*[(1, 9, 5)] * n)  # noqa: E731
    decodes_of(1)
    serve((5, 0, 5))
    decodes_of(3)
    decodes_of(65)
    serve((1, 9, 5), (7, 0, 7))
    out = {"steps": counted(recorder)}
    CUDAGraphWrapper.clear_all_graphs()
    model.specialized_decode.batches = ()
    decodes_of(1)  # captured again, lazily: only the second replay is of that graph
    decodes_of(1)
    return {**out, "captured again": counted(recorder)}


def facts() -> dict[str, Any]:
    """What the page says besides counts, what is refused, and what counting costs."""
    from vllm.models.kimi_k3.nvidia.specialized_decode import runtime as specialized
    from vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode import SpecializedDecode
    from vllm.v1.worker.gpu import warmup
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from runtime.witness import cuda

    fake.pipeline_stage(0, 1)
    config = fake.vllm_config((8,), drafts=7, rank=2)
    specialized.unsupported = lambda asked: "this GPU (SM100/103)"
    SpecializedDecode.plan = getattr(SpecializedDecode.plan, MARK)
    unavailable = cuda.install(config).page.about["unavailable"]
    plan_wrapped = hasattr(SpecializedDecode.plan, MARK)
    specialized.unsupported = lambda asked: None
    recorder = cuda.install(config)
    runner = fake.runner(config, fake.k3_model(8), drafts=7)
    runner.capture()
    decodes(runner, 1, tokens=8)
    desc = next(iter(runner.cudagraph_manager.graphs))
    state = SimpleNamespace(req_ids=["r"], num_tokens=8)
    page = recorder.page.page()
    cost = cost_ns(cuda, recorder, desc, state)
    recorder.step(
        runner.cudagraph_manager, SimpleNamespace(), None
    )  # an unknown shape is reported, not raised
    return {
        "page": page,
        "unavailable": unavailable,
        "plan is left alone where vLLM refuses": not plan_wrapped,
        "known_after_fault": recorder.page.about["known_build"],
        "step_ns": cost,
        "warm_up_names_are_vllms": all(f'"{name}' in inspect.getsource(warmup) for name in cuda._WARM_UP),
        "parameters_are_vllms": list(inspect.signature(REAL["prepare_inputs"]).parameters)
        == list(inspect.signature(GPUModelRunner.prepare_inputs._k3_witnessed).parameters),
        "foreign_seams": [refusal(cuda.counted, recorder), refusal(cuda.bound, recorder.captures)],
    }


def cost_ns(cuda: Any, recorder: Any, desc: Any, state: Any) -> float:
    """What counting adds to one call of ``prepare_inputs``."""

    def prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras):
        return None

    counting = cuda.counted(prepare_inputs, recorder)

    def best(call: Callable[..., Any]) -> float:
        return (
            1e9
            * min(timeit.repeat(lambda: call(None, None, state, desc, 0), number=5_000, repeat=40))
            / 5_000
        )

    return best(counting) - best(prepare_inputs)


def refusal(wrap: Callable[..., Any], counter: Any) -> str:
    """What a seam with other parameters is answered with."""

    def seam(self, batch):
        return None

    try:
        wrap(seam, counter)
    except AttributeError as error:
        return str(error)
    return ""


def seams() -> dict[str, tuple[Any, str]]:
    """Every method that the witness has wrapped, by name."""
    from vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode import SpecializedDecode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1Runner

    owners = (CudaGraphManager, SpecializedDecode, GPUModelRunner, V1Runner)
    return {
        f"{owner.__module__.rpartition('.')[2]}.{name}": (owner, name)
        for owner in owners
        for name, method in vars(owner).items()
        if hasattr(method, MARK)
    }


SCENARIOS = (
    serving, verify_steps, drafter, released, profiled, piecewise, any_mixture, stages, own_executor, v1_runner,
)  # fmt: skip


def main() -> None:
    fake.fake_cuda()
    from vllm.models.kimi_k3.nvidia.specialized_decode import runtime as specialized
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    REAL["prepare_inputs"] = GPUModelRunner.prepare_inputs
    fake.without_device(GPUModelRunner)
    specialized.unsupported = lambda asked: None
    result: dict[str, Any] = {scenario.__name__: scenario() for scenario in SCENARIOS}
    result["facts"] = facts()
    result["without"] = {}
    for seam in seams():
        WITHOUT[:] = [seam]
        result["without"][seam] = {scenario.__name__: scenario() for scenario in (serving, v1_runner)}
    sys.stdout.write("RESULT" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
