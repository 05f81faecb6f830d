"""Counts the path of every step of vLLM's own CUDA runner, where the specialized decode is in-tree (Blackwell).

vLLM 0.33.0 decides per captured graph, at capture: ``SpecializedDecode.plan`` answers with a step or None while the
graph of one batch descriptor is being captured. Serving replays graphs by descriptor and runs no model code. So three
seams are enough, each a wrapper around a small method:

* ``CudaGraphManager._capture_stream(desc)`` – which descriptor is being captured;
* ``SpecializedDecode.plan`` – what was decided for it;
* ``GPUModelRunner.prepare_inputs`` – called once for every real (never a dummy) step, with its descriptor.

Read on vLLM 0.33.0's source and tested against it without a GPU; not yet run on Blackwell hardware.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from runtime import witness
from runtime.engine.versions import KNOWN_VLLM, runtime_version, vllm_version
from runtime.model.decode import MAX_ROWS, Kind, Path, Reason

logger = logging.getLogger("vllm.k3_witness")

SPECIALIZED = "latency_specialized"
GRAPH_NOT_SPECIALIZED = "graph-not-specialized"
_MARK = "_k3_witnessed"


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
        self._full: dict[int, list[int]] = {}
        self._held: list[Any] = []
        self._broken = False

    def captured(self, step: Any) -> None:
        """``plan`` answered while a descriptor was being captured; the last answer is the graph's."""
        if self.capturing is not None:
            self.decided[self.capturing] = step is not None
            self._full.clear()

    def step(self, desc: Any, state: Any) -> None:
        """Count one real step. An unexpected shape of the arguments is reported once and never raised."""
        try:
            counts = self._full.get(id(desc))
            if counts is None:
                counts = self.page.counter(self._key(desc, state))
                if desc.cg_mode.name == "FULL":
                    self._full[id(desc)] = counts
                    self._held.append(desc)
            counts[0] += 1
            counts[1] += len(state.req_ids)
            counts[2] += state.num_tokens
        except Exception as error:
            if not self._broken:
                logger.error(
                    "k3 witness: a step could not be counted (%r); counts are incomplete from here", error
                )
                self.page.about["known_build"] = False
            self._broken = True

    def _key(self, desc: Any, state: Any) -> witness.Key:
        if desc.cg_mode.name == "FULL":
            if self.decided.get(desc, False):
                return Path.SPECIALIZED.value, Kind.DECODE.value, "full", ""
            reason = Reason.TOO_MANY_ROWS.value if desc.num_tokens > MAX_ROWS else GRAPH_NOT_SPECIALIZED
            return Path.STANDARD.value, Kind.DECODE.value, "full", self._unless_off(reason)
        kind, reason = Kind.DECODE, Reason.NOT_UNIFORM.value
        if state.has_prefill:
            reason = Reason.PREFILL.value
            kind = Kind.PREFILL if bool(state.is_prefilling_np.all()) else Kind.MIXED
        mode = "piecewise" if desc.cg_mode.name == "PIECEWISE" else "eager"
        return Path.STANDARD.value, kind.value, mode, self._unless_off(reason)

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
            "refused": [],
        }
    )
    recorder = StepRecorder(page, asked == SPECIALIZED)

    def before_capture(_manager: Any, desc: Any) -> None:
        recorder.capturing = desc

    def before_step(_runner: Any, _scheduled: Any, state: Any, desc: Any, *_: Any) -> None:
        recorder.step(desc, state)

    _wrap(CudaGraphManager, "_capture_stream", before=before_capture)
    _wrap(GPUModelRunner, "prepare_inputs", before=before_step)
    if recorder.requested:
        from vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode import SpecializedDecode

        _wrap(SpecializedDecode, "plan", after=recorder.captured)
    return recorder


def _wrap(
    owner: type,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> None:
    """Call ``before`` with the method's arguments, ``after`` with its result. Wrapping again replaces the callbacks."""
    original = getattr(owner, name)
    original = getattr(original, _MARK, original)

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
