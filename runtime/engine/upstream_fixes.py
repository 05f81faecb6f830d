"""Faults of vLLM 0.33.0 that change tokens or end the engine, repaired from outside.

Each entry says what goes wrong and is covered by a test that fails without it. Applied by the plugin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

_MARK = "_k3_fixed"


def fix_expand(expand_into: Callable[..., None]) -> None:
    """Sampling parameters of speculative decoding; ``expand_into`` writes the output that it is given.

    The CPU override of ``expand_kernel`` (0.32 and 0.33) fills an int64 *copy* of temperature, top-k and top-p that is
    thrown away, so that drafts are verified with uninitialised sampling parameters.
    """
    from vllm.utils import cpu_triton_utils

    def expand(
        output: Tensor,
        input_val: Tensor,
        cu_num_tokens: Tensor,
        replace_from: float,
        replace_to: float,
        MAX_NUM_TOKENS: int | None = None,
    ) -> None:
        expand_into(output, input_val, cu_num_tokens, replace_from, replace_to)

    cpu_triton_utils._expand_kernel_impl = expand


def fix_top_k_of_nothing() -> None:
    """A speculative step in which no request has a draft, with top-k alone (CPU).

    ``apply_top_k_only`` asks for the largest k of no rows at all, which ends the engine: requests at their last token
    carry no drafts, but the verification of drafts still runs.
    """
    from vllm.v1.sample.ops import topk_topp_sampler

    original: Callable[[Tensor, Tensor], Tensor] = topk_topp_sampler.apply_top_k_only
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def apply(logits: Tensor, k: Tensor) -> Tensor:
        return original(logits, k) if logits.shape[0] else logits

    setattr(apply, _MARK, True)
    topk_topp_sampler.apply_top_k_only = apply


def fix_pipeline_stream() -> None:
    """The stream that pipeline stages wait for (CUDA).

    ``PPHandler`` keeps ``torch.cuda.current_stream()`` as the stream whose work its broadcasts wait for. vLLM's own
    ``current_stream()`` replaces a thread's stream when it is first called; pynccl does that early. Without pynccl (an
    NCCL before 2.29.7, or ``VLLM_DISABLE_PYNCCL=1``) it happens after the handler was built: its waits then order an
    idle stream, and a stage reads tokens that are not there yet. We make the call before the handler looks.
    """
    from vllm.v1.worker.gpu.pp_utils import PPHandler

    original: Callable[..., None] = PPHandler.__init__
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm.utils.torch_utils import current_stream

        current_stream()
        original(self, *args, **kwargs)

    setattr(init, _MARK, True)
    PPHandler.__init__ = init


def fix_accepted_counts() -> None:
    """State of a hybrid model with drafts, after a step that had no room for one of its running requests.

    The V1 runner drops such a request from its persistent batch and later adds it again with ``num_accepted_tokens``
    = 1, although its recurrent state lies in the column of the last accepted draft. We carry the count over the gap;
    a preempted request starts afresh and keeps the default.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original: Callable[[Any, Any], Any] = GPUModelRunner._update_states
    if getattr(original, _MARK, False):
        return

    def update_states(self: Any, scheduler_output: Any) -> Any:
        saved: dict[str, int] = self.__dict__.setdefault("_k3_accepted", {})
        scheduled = scheduler_output.num_scheduled_tokens.keys()
        for request, row in self.input_batch.req_id_to_index.items():
            if request not in scheduled:
                saved[request] = int(self.input_batch.num_accepted_tokens_cpu[row])
        result = original(self, scheduler_output)
        gone = (
            set(scheduler_output.finished_req_ids)
            | set(scheduler_output.preempted_req_ids or ())
            | set(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
        )
        for request in list(saved):
            if request in gone:
                del saved[request]
            elif (row := self.input_batch.req_id_to_index.get(request)) is not None:
                self.input_batch.num_accepted_tokens_cpu[row] = saved.pop(request)
        return result

    setattr(update_states, _MARK, True)
    GPUModelRunner._update_states = update_states
