"""What the engine's configuration asks of the decode path, decided once when the model is built."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)

from runtime.model.decode import MAX_ROWS, DecodeSetup
from runtime.model.sharding import Shard

SWITCH = "decode_backend"
SPECIALIZED = "latency_specialized"
SUPPORTED = ("auto", SPECIALIZED)


def tensor_parallel_shard() -> Shard:
    """This worker's shard in vLLM's tensor-parallel group."""
    size = get_tensor_model_parallel_world_size()
    if size == 1:
        return Shard()
    return Shard(size, get_tensor_model_parallel_rank(), tensor_model_parallel_all_reduce)


def decode_setup(vllm_config: VllmConfig) -> DecodeSetup:
    """Read the switch and every reason why this configuration cannot have the specialized path.

    Raises ``ValueError`` for an unknown ``decode_backend``: vLLM itself accepts any key or value silently.
    """
    asked = _additional(vllm_config).get(SWITCH, "auto")
    if asked not in SUPPORTED:
        raise ValueError(f"decode_backend must be one of {', '.join(SUPPORTED)}; got {asked!r}")
    return DecodeSetup(
        requested=asked == SPECIALIZED,
        query_len=1 + vllm_config.num_speculative_tokens,
        max_rows=MAX_ROWS,
        refused=tuple(unsupported(vllm_config)) if asked == SPECIALIZED else (),
    )


def unsupported(vllm_config: VllmConfig) -> list[str]:
    """Every reason why our executor cannot run specialized steps under this configuration (empty: it can)."""
    parallel, speculative = vllm_config.parallel_config, vllm_config.speculative_config
    checks = (
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism"),
        (parallel.enable_expert_parallel, "expert parallelism"),
        (vllm_config.lora_config is not None, "LoRA"),
        (
            speculative is not None and speculative.num_speculative_tokens_per_batch_size is not None,
            "a number of draft tokens that depends on the batch size",
        ),
        (1 + vllm_config.num_speculative_tokens > 8, "more than 7 draft tokens"),
    )
    return [reason for failed, reason in checks if failed]


def _additional(vllm_config: VllmConfig) -> dict[str, Any]:
    config = vllm_config.additional_config
    return config if isinstance(config, dict) else {}
