"""Counts the path of every step of vLLM's own CUDA runners, and of any executor that rides on their graphs.

vLLM 0.33.0 decides per captured graph, at capture: ``SpecializedDecode.plan`` answers with a step or None. It is asked
in every other forward pass too (profiling, the warm-up before each capture, eager steps), where it answers None; only
what it answers while the graph of a batch descriptor is being captured says what that graph holds. Serving replays
graphs by descriptor and runs no model code. The seams, each a wrapper around one method:

* ``CudaGraphManager.capture`` – opens the capture of one descriptor of one manager around the forward pass that is
  captured, and around no other. A drafter's managers, profiling's and a second capture each have their own graphs;
* ``SpecializedDecode.plan`` – what was decided; an executor of our own says it itself (``captures``);
* ``GPUModelRunner.prepare_inputs`` – called once for every real (never a dummy) step, with its descriptor;
* ``GPUModelRunner._model_forward`` of the V1 runner – the same there; its descriptor is in the forward context.

Driven by vLLM 0.33.0's own managers and runner with CUDA faked, and run on an H200, where vLLM has no specialized path
and every step is standard; not yet run on Blackwell hardware.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from runtime import witness
from runtime.model.decode import MAX_ROWS, Kind, Path, Reason
from runtime.witness.about import who
from runtime.witness.captures import STANDARD, Captures, Content

logger = logging.getLogger("vllm.k3_witness")

SPECIALIZED = "latency_specialized"
OWN_SWITCH, OWN_OFF = "k3_decode", "stock"
"""Key of ``additional_config`` that asks for an executor of our own, and the value that does not."""
GRAPH_NOT_SPECIALIZED = "graph-not-specialized"
_MARK = "_k3_witnessed"
_MODES = {"FULL": "full", "PIECEWISE": "piecewise", "NONE": "eager"}
_STEP_PARAMETERS = ("self", "scheduler_output", "batch_req_state", "batch_desc", "num_active_loras")
_CAPTURE_PARAMETERS = ("self", "create_forward_fn", "progress_bar_desc")
_WARM_UP = ("_warmup_", "_v2_mixed_warmup")
"""How the ids of the requests begin that vLLM makes up to compile kernels, before it captures graphs."""


class StepRecorder:
    """Turns a step's descriptor and request state into a witness key. ``requested``: the switch."""

    def __init__(self, page: witness.Witness, requested: bool) -> None:
        self.page, self.requested = page, requested
        self.captures = Captures(_capturing, _v1_capture, self._forget)
        page.graphs = self.graphs
        # by identity: dispatch hands out the descriptors it keeps, and hashing one costs more than everything else
        # here; holding them makes an id unique
        self.full: dict[int, list[int]] = {}
        self._held: list[Any] = []
        self._broken = False

    def step(self, manager: Any, desc: Any, state: Any) -> None:
        """Count one real step of the V2 runner, which replays the graphs of ``manager``.

        An unexpected shape of the arguments is reported once and never raised.
        """
        try:
            if state.req_ids[0].startswith(_WARM_UP):
                return
            kind = Kind.DECODE
            if state.has_prefill and not _decodes_only(desc):
                kind = Kind.PREFILL if bool(state.is_prefilling_np.all()) else Kind.MIXED
            content = self.captures.holds(manager, desc)
            lengths = state.num_scheduled_tokens
            uniform = bool(lengths.min() == lengths.max())
            counts = self.page.counter(self._key(content, kind, desc.cg_mode.name, desc.num_tokens, uniform))
            if _decodes_only(desc):
                self.full[id(desc)] = counts
                self._held.append(desc)
            _count(counts, len(state.req_ids), state.num_tokens)
        except Exception as error:
            self.failed(error)

    def v1_step(self, runner: Any) -> None:
        """Count one real step of the V1 runner, from inside its forward context."""
        from vllm.forward_context import get_forward_context

        try:
            context = get_forward_context()
            batch, rows = runner.input_batch, int(runner.input_batch.num_reqs)
            prefilling = batch.num_computed_tokens_cpu[:rows] < batch.num_prompt_tokens[:rows]
            kind = Kind.DECODE
            if prefilling.any():
                kind = Kind.PREFILL if prefilling.all() else Kind.MIXED
            mode, desc = context.cudagraph_runtime_mode.name, context.batch_descriptor
            content = self.captures.holds(_v1_graphs(), desc) if mode == "FULL" else STANDARD
            starts = runner.query_start_loc.np[: rows + 1]
            uniform = len(set((starts[1:] - starts[:-1]).tolist())) == 1
            key = self._key(content, kind, mode, desc.num_tokens, uniform)
            _count(self.page.counter(key), rows, int(starts[-1]))
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """A step was not counted: say so once, and never again claim to know this build."""
        if not self._broken:
            logger.error("k3 witness: a step could not be counted (%r); counts are incomplete", error)
            self.page.about["known_build"] = False
        self._broken = True

    def graphs(self) -> list[dict[str, Any]]:
        """The captured graphs of the specialized path: token rows, sequences, slots, kernels of a layer by kind."""
        rows = [
            {
                "tokens": desc.num_tokens,
                "requests": desc.num_reqs,
                "path": Path.SPECIALIZED.value,
                "slots": content.slots,
                "kernels": dict(content.kernels),
            }
            for desc, content in self.captures.all()
            if content.specialized
        ]
        return sorted(rows, key=lambda row: (row["tokens"], row["requests"] or 0))

    def _forget(self) -> None:
        self.full.clear()
        self._held.clear()

    def _key(self, content: Content, kind: Kind, mode: str, tokens: int, uniform: bool) -> witness.Key:
        if content.specialized and mode == "FULL":
            return witness.Key(Path.SPECIALIZED.value, kind.value, _MODES[mode], "", content.slots)
        if kind is not Kind.DECODE:
            reason = Reason.PREFILL.value
        elif mode != "FULL" and not uniform:
            reason = Reason.NOT_UNIFORM.value
        else:
            reason = Reason.TOO_MANY_ROWS.value if tokens > MAX_ROWS else GRAPH_NOT_SPECIALIZED
        return witness.Key(Path.STANDARD.value, kind.value, _MODES[mode], self._unless_off(reason))

    def _unless_off(self, reason: str) -> str:
        return reason if self.requested else Reason.BACKEND_OFF.value


def install(vllm_config: Any) -> StepRecorder:
    """Wrap the seams in this worker process.

    Raises ``AttributeError`` or ``ImportError`` naming the seam that this vLLM does not have.
    """
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1Runner

    additional = vllm_config.additional_config if isinstance(vllm_config.additional_config, dict) else {}
    own = additional.get(OWN_SWITCH)
    own = None if own == OWN_OFF else own
    asked = own or additional.get("decode_backend", "auto")
    unavailable = [] if own else _unavailable(vllm_config)
    page = witness.install(
        {
            **who(vllm_config),
            "platform": "cuda",
            "decode_backend": asked,
            "max_rows": MAX_ROWS,
            "query_len": 1 + vllm_config.num_speculative_tokens,
            "refused": [],  # a refused request ends the engine's start
            "unavailable": unavailable,
        }
    )
    recorder = StepRecorder(page, asked != "auto")
    witness.record_captures(recorder.captures)
    CudaGraphManager.capture = bound(_original(CudaGraphManager, "capture"), recorder.captures)
    GPUModelRunner.prepare_inputs = counted(_original(GPUModelRunner, "prepare_inputs"), recorder)
    V1Runner._model_forward = v1_counted(_original(V1Runner, "_model_forward"), recorder)
    if asked == SPECIALIZED and not unavailable:  # else vLLM refuses to start
        from vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode import SpecializedDecode

        SpecializedDecode.plan = decided(_original(SpecializedDecode, "plan"), recorder.captures)
    return recorder


def bound(capture: Callable[..., Any], captures: Captures) -> Callable[..., Any]:
    """``CudaGraphManager.capture`` that opens a capture around each forward pass that it captures.

    Raises ``AttributeError`` when its parameters are not those that are known.
    """
    _expect(capture, _CAPTURE_PARAMETERS)

    @functools.wraps(capture)
    def capture_bound(self: Any, create_forward_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def create(desc: Any, warmup: bool) -> Callable[..., Any]:
            forward = create_forward_fn(desc, warmup=warmup)
            return forward if warmup else captures.bound(self, desc, forward)

        return capture(self, create, *args, **kwargs)

    setattr(capture_bound, _MARK, capture)
    return capture_bound


def decided(plan: Callable[..., Any], captures: Captures) -> Callable[..., Any]:
    """``SpecializedDecode.plan`` that says what it answered."""

    @functools.wraps(plan)
    def plan_decided(*args: Any, **kwargs: Any) -> Any:
        step = plan(*args, **kwargs)
        captures.decide(Content(specialized=step is not None))
        return step

    setattr(plan_decided, _MARK, plan)
    return plan_decided


def counted(prepare_inputs: Callable[..., Any], recorder: StepRecorder) -> Callable[..., Any]:
    """``prepare_inputs`` that counts its step first. Written out for speed: every decode step passes here.

    Raises ``AttributeError`` when its parameters are not those that are counted by.
    """
    _expect(prepare_inputs, _STEP_PARAMETERS)
    full, step = recorder.full, recorder.step

    def count_and_prepare(
        self: Any, scheduler_output: Any, batch_req_state: Any, batch_desc: Any, num_active_loras: int
    ) -> Any:
        try:
            counts = full[id(batch_desc)]
            counts[0] += 1
            counts[1] += len(batch_req_state.req_ids)
            counts[2] += batch_req_state.num_tokens
        except KeyError:  # no decode graph, or its first replay
            step(getattr(self, "cudagraph_manager", None), batch_desc, batch_req_state)
        except Exception as error:
            recorder.failed(error)
        return prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras)

    setattr(count_and_prepare, _MARK, prepare_inputs)
    return functools.wraps(prepare_inputs)(count_and_prepare)


def v1_counted(model_forward: Callable[..., Any], recorder: StepRecorder) -> Callable[..., Any]:
    """The V1 runner's ``_model_forward``, which only real steps pass, that counts its step.

    Afterwards: its graphs may be captured by the step itself.
    """

    @functools.wraps(model_forward)
    def forward_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = model_forward(self, *args, **kwargs)
        recorder.v1_step(self)
        return result

    setattr(forward_and_count, _MARK, model_forward)
    return forward_and_count


def _expect(method: Callable[..., Any], parameters: tuple[str, ...]) -> None:
    found = tuple(inspect.signature(method).parameters)
    if found != parameters:
        raise AttributeError(f"{method.__name__} takes {', '.join(found)}")


def _count(counts: list[int], rows: int, tokens: int) -> None:
    counts[0] += 1
    counts[1] += rows
    counts[2] += tokens


def _decodes_only(desc: Any) -> bool:
    """Whether a descriptor's graph is captured for decodes: dispatch keeps prefills out of it, apart from one-token
    extensions, which run as decodes. With ``cudagraph_mode=FULL`` there are full graphs for any mixture too.
    """
    bounded = desc.uniform_token_count is not None or desc.max_query_len is not None
    return bool(desc.cg_mode.name == "FULL" and bounded)


def _capturing() -> bool:
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def _v1_graphs() -> Any:
    """The owner of the V1 runner's graphs: its wrappers share one set of descriptors."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    return CUDAGraphWrapper


def _v1_capture() -> tuple[Any, Any] | None:
    """The full graph that the V1 runner is capturing. In the V2 runner's captures the context says no mode."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    if not is_forward_context_available():
        return None
    context = get_forward_context()
    if context.cudagraph_runtime_mode.name != "FULL" or context.batch_descriptor is None:
        return None
    return _v1_graphs(), context.batch_descriptor


def _unavailable(vllm_config: Any) -> list[str]:
    """Why this deployment cannot have the specialized decode, in vLLM's own words (its first reason only)."""
    try:
        from vllm.models.kimi_k3.nvidia.specialized_decode import runtime as specialized

        reason = specialized.unsupported(vllm_config)
    except Exception as error:  # another model's configuration lacks what is read there
        logger.warning("k3 witness: vLLM cannot say whether specialized decode is possible (%r)", error)
        return []
    told = (reason or "").replace("(SM100/103)", "(it needs SM100 or SM103)")
    return [f"vLLM's specialized decode does not support {told}"] if reason else []


def _original(owner: type, name: str) -> Any:
    method = getattr(owner, name)
    return getattr(method, _MARK, method)
