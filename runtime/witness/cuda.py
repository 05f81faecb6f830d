"""Counts the path of every step of vLLM's own CUDA runner, where the specialized decode is in-tree (Blackwell).

vLLM 0.33.0 decides per captured graph, at capture: ``SpecializedDecode.plan`` answers with a step or None while the
graph of one batch descriptor is being captured. Serving replays graphs by descriptor and runs no model code. So three
seams are enough, each a wrapper around a small method:

* ``CudaGraphManager._capture_stream(desc)`` – which descriptor is being captured;
* ``SpecializedDecode.plan`` – what was decided for it;
* ``GPUModelRunner.prepare_inputs`` – called once for every real (never a dummy) step, with its descriptor.

Tested against vLLM 0.33.0's source, and run on an H200, where vLLM has no specialized path and every step is standard;
not yet run on Blackwell hardware.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from runtime import witness
from runtime.model.decode import MAX_ROWS, Kind, Path, Reason
from runtime.versions import KNOWN_VLLM, runtime_version, vllm_version

logger = logging.getLogger("vllm.k3_witness")

SPECIALIZED = "latency_specialized"
GRAPH_NOT_SPECIALIZED = "graph-not-specialized"
_MARK = "_k3_witnessed"
_MODES = {"FULL": "full", "PIECEWISE": "piecewise", "NONE": "eager"}
_STEP_PARAMETERS = ("self", "scheduler_output", "batch_req_state", "batch_desc", "num_active_loras")
_WARM_UP = ("_warmup_", "_v2_mixed_warmup")
"""How the ids of the requests begin that vLLM makes up to compile kernels, before it captures graphs."""


class StepRecorder:
    """Turns a step's descriptor and request state into a witness key.

    ``decided``: per captured descriptor, whether its graph holds the specialized path. ``requested``: the switch.
    """

    def __init__(self, page: witness.Witness, requested: bool) -> None:
        self.page, self.requested = page, requested
        self.decided: dict[Any, bool] = {}
        self.capturing: Any = None
        # by identity: dispatch hands out the descriptors it keeps, and hashing one costs more than everything else
        # here; holding them makes an id unique
        self.full: dict[int, list[int]] = {}
        self._held: list[Any] = []
        self._broken = False

    def captured(self, step: Any) -> None:
        """``plan`` answered while a descriptor was being captured; the last answer is the graph's."""
        if self.capturing is not None:
            self.decided[self.capturing] = step is not None
            self.full.clear()

    def step(self, desc: Any, state: Any) -> None:
        """Count one real step. An unexpected shape of the arguments is reported once and never raised."""
        try:
            if state.req_ids[0].startswith(_WARM_UP):
                return
            counts = self.page.counter(self._key(desc, state))
            if _decodes_only(desc):
                self.full[id(desc)] = counts
                self._held.append(desc)
            counts[0] += 1
            counts[1] += len(state.req_ids)
            counts[2] += state.num_tokens
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """A step was not counted: say so once, and never again claim to know this build."""
        if not self._broken:
            logger.error("k3 witness: a step could not be counted (%r); counts are incomplete", error)
            self.page.about["known_build"] = False
        self._broken = True

    def _key(self, desc: Any, state: Any) -> witness.Key:
        kind = Kind.DECODE
        if state.has_prefill and not _decodes_only(desc):
            kind = Kind.PREFILL if bool(state.is_prefilling_np.all()) else Kind.MIXED
        if self.decided.get(desc, False):
            return Path.SPECIALIZED.value, kind.value, "full", ""
        if kind is not Kind.DECODE:
            reason = Reason.PREFILL.value
        elif desc.cg_mode.name != "FULL":
            reason = Reason.NOT_UNIFORM.value
        else:
            reason = Reason.TOO_MANY_ROWS.value if desc.num_tokens > MAX_ROWS else GRAPH_NOT_SPECIALIZED
        return Path.STANDARD.value, kind.value, _MODES[desc.cg_mode.name], self._unless_off(reason)

    def _unless_off(self, reason: str) -> str:
        return reason if self.requested else Reason.BACKEND_OFF.value


def install(vllm_config: Any) -> StepRecorder:
    """Wrap the three seams in this worker process.

    Raises ``AttributeError`` or ``ImportError`` naming the seam that this vLLM does not have.
    """
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    additional = vllm_config.additional_config
    asked = additional.get("decode_backend", "auto") if isinstance(additional, dict) else "auto"
    unavailable = _unavailable(vllm_config)
    page = witness.install(
        {
            "runtime": runtime_version(),
            "vllm": vllm_version(),
            "known_build": vllm_version() in KNOWN_VLLM,
            "platform": "cuda",
            "rank": vllm_config.parallel_config.rank,
            "decode_backend": asked,
            "max_rows": MAX_ROWS,
            "query_len": 1 + vllm_config.num_speculative_tokens,
            "refused": [],  # a refused request ends the engine's start
            "unavailable": unavailable,
        }
    )
    recorder = StepRecorder(page, asked == SPECIALIZED)

    def before_capture(_manager: Any, desc: Any) -> None:
        recorder.capturing = desc

    _wrap(CudaGraphManager, "_capture_stream", before=before_capture)
    GPUModelRunner.prepare_inputs = counted(_original(GPUModelRunner, "prepare_inputs"), recorder)
    if recorder.requested and not unavailable:  # else vLLM refuses to start
        from vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode import SpecializedDecode

        _wrap(SpecializedDecode, "plan", after=recorder.captured)
    return recorder


def counted(prepare_inputs: Callable[..., Any], recorder: StepRecorder) -> Callable[..., Any]:
    """``prepare_inputs`` that counts its step first. Written out for speed: every decode step passes here.

    Raises ``AttributeError`` when its parameters are not those that are counted by.
    """
    found = tuple(inspect.signature(prepare_inputs).parameters)
    if found != _STEP_PARAMETERS:
        raise AttributeError(f"prepare_inputs takes {', '.join(found)}")
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
            step(batch_desc, batch_req_state)
        except Exception as error:
            recorder.failed(error)
        return prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras)

    setattr(count_and_prepare, _MARK, prepare_inputs)
    return functools.wraps(prepare_inputs)(count_and_prepare)


def _decodes_only(desc: Any) -> bool:
    """Whether a descriptor's graph is captured for decodes: dispatch keeps prefills out of it, apart from one-token
    extensions, which run as decodes. With ``cudagraph_mode=FULL`` there are full graphs for any mixture too.
    """
    bounded = desc.uniform_token_count is not None or desc.max_query_len is not None
    return bool(desc.cg_mode.name == "FULL" and bounded)


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


def _wrap(
    owner: type,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> None:
    """Call ``before`` with the method's arguments, ``after`` with its result. Wrapping again replaces the callbacks."""
    original = _original(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result)
        return result

    setattr(wrapped, _MARK, original)
    setattr(owner, name, wrapped)
