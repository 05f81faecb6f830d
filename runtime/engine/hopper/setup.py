"""What the configuration asks of the Hopper executor, and every reason why it cannot have it.

The switch is ours, because vLLM refuses any ``decode_backend`` that it does not know:
``--additional-config '{"k3_decode": "hopper"}'``. `stock` (the default) leaves vLLM alone, `hopper` is served or
refused at start, `auto` falls back to stock with a warning. ``k3_slots`` takes slots and layers out, for bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.config import VllmConfig

from runtime.kernels.attn_res import spec as attn_res
from runtime.kernels.common.launch.device import missing_packages
from runtime.kernels.kda import spec as kda
from runtime.model.decode import MAX_ROWS, DecodeSetup
from runtime.model.step import SlotChoice
from runtime.versions import KNOWN_VLLM, vllm_version

SWITCH, SLOTS = "k3_decode", "k3_slots"
STOCK, HOPPER, AUTO = "stock", "hopper", "auto"
ARCH = "sm_90a"
DEFAULT_SLOTS = "mix,attend"
"""What is ours where nothing else is asked: the slots that have kernels."""
MAX_DRAFTS = kda.MAX_TOKENS - 1
FULL_GRAPHS = ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")


@dataclass(frozen=True)
class HopperSetup:
    """Decided when the model is built. asked: the switch. slots: see ``SlotChoice``. refused: every reason against.

    rows: the sizes of the decode graphs that will be captured, up to ``MAX_ROWS`` token rows.
    """

    asked: str = STOCK
    slots: SlotChoice = field(default_factory=lambda: SlotChoice(()))
    query_len: int = 1
    rows: tuple[int, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether the executor is to be built."""
        return self.asked != STOCK and not self.refused

    @property
    def decode(self) -> DecodeSetup:
        """The same for ``decode.plan``."""
        return DecodeSetup(self.asked != STOCK, self.query_len, MAX_ROWS, self.refused)


class RefusedError(ValueError):
    """The configuration or the weights cannot be served by the Hopper executor."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(
            "the Hopper executor cannot serve this: " + "; ".join(reasons) + f" (switch: {SWITCH}={HOPPER})"
        )


def hopper_setup(vllm_config: VllmConfig) -> HopperSetup:
    """Read the switch. Raises ``ValueError`` for values that it does not know, ``RefusedError`` with all reasons when
    `hopper` is asked for and cannot be.
    """
    extra = vllm_config.additional_config
    extra = extra if isinstance(extra, dict) else {}
    asked = extra.get(SWITCH, STOCK)
    if asked not in (STOCK, HOPPER, AUTO):
        raise ValueError(f"{SWITCH} must be {STOCK}, {AUTO} or {HOPPER}; got {asked!r}")
    try:
        slots = SlotChoice.parse(str(extra.get(SLOTS, DEFAULT_SLOTS)))
    except ValueError as error:
        raise ValueError(f"{SLOTS}: {error}") from None
    if asked == STOCK:
        return HopperSetup()
    query_len = 1 + vllm_config.num_speculative_tokens
    refused = tuple(unsupported(vllm_config))
    if refused and asked == HOPPER:
        raise RefusedError(refused)
    return HopperSetup(asked, slots, query_len, graph_rows(vllm_config, query_len), refused)


def graph_rows(vllm_config: VllmConfig, query_len: int) -> tuple[int, ...]:
    """Token rows of the decode graphs that vLLM captures: its sizes, rounded up to whole requests."""
    sizes = vllm_config.compilation_config.cudagraph_capture_sizes or ()
    rounded = {-(-size // query_len) * query_len for size in sizes}
    return tuple(sorted(size for size in rounded if size <= MAX_ROWS))


def unsupported(vllm_config: VllmConfig) -> list[str]:
    """Every reason why this configuration cannot be served, from the configuration alone (empty: it can)."""
    return [
        reason
        for failed, reason in (
            *_machine(),
            *_model(vllm_config),
            *_parallel(vllm_config),
            *_engine(vllm_config),
            *_speculation(vllm_config),
        )
        if failed
    ]


Check = tuple[bool, str]


def _machine() -> list[Check]:
    from vllm.platforms import current_platform

    capability = current_platform.get_device_capability()
    name = (
        "no GPU"
        if capability is None
        else f"a GPU of compute capability {capability.major}.{capability.minor}"
    )
    return [
        (
            capability is None or (capability.major, capability.minor) != (9, 0),
            f"{name}: it needs Hopper (9.0)",
        ),
        (
            vllm_version() not in KNOWN_VLLM,
            f"vLLM {vllm_version()}: written for {', '.join(sorted(KNOWN_VLLM))}",
        ),
        *((True, reason) for reason in missing_packages("cutlass")),
    ]


def _model(vllm_config: VllmConfig) -> list[Check]:
    import torch

    text = vllm_config.model_config.hf_text_config
    linear = getattr(text, "linear_attn_config", None)
    block = getattr(text, "attn_res_block_size", None)
    if not linear or not block:
        return [(True, "a model without Kimi K3's linear attention and attention residuals")]
    heads = linear["num_heads"] // vllm_config.parallel_config.tensor_parallel_size
    bound = linear.get("gate_lower_bound")
    blocks = -(-text.num_hidden_layers // block)
    site = attn_res.AttnResSpec(
        text.hidden_size, blocks, None, True, True, text.rms_norm_eps, text.rms_norm_eps
    )
    core = kda.KdaDecodeSpec(
        heads, 1 + vllm_config.num_speculative_tokens, bound if bound is not None else -1.0
    )
    quantization = vllm_config.model_config.quantization
    return [
        (
            vllm_config.model_config.dtype != torch.bfloat16,
            f"{vllm_config.model_config.dtype}: it needs bfloat16",
        ),
        (
            linear["head_dim"] != kda.HEAD_SIZE,
            f"KDA heads of {linear['head_dim']}: they must be {kda.HEAD_SIZE}",
        ),
        (
            linear["short_conv_kernel_size"] != kda.TAPS,
            f"a convolution of {linear['short_conv_kernel_size']} taps",
        ),
        (not linear.get("use_full_rank_gate", False), "a KDA layer without full-rank output gate"),
        (bound is None, "a KDA gate without lower bound"),
        (quantization not in (None, "mxfp4"), f"quantization {quantization}: only MXFP4 experts or none"),
        (
            _kda_dtypes(vllm_config) != (torch.bfloat16, torch.float32),
            "a KDA cache other than BF16 inputs and FP32 states",
        ),
        *((True, reason) for reason in attn_res.unsupported(site, ARCH)),
        *((True, reason) for reason in kda.unsupported(core, ARCH) if "tokens" not in reason),
    ]


def _kda_dtypes(vllm_config: VllmConfig) -> tuple[Any, ...]:
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator

    cache = vllm_config.cache_config
    return tuple(
        MambaStateDtypeCalculator.kda_state_dtype(
            vllm_config.model_config.dtype, cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype
        )
    )


def _parallel(vllm_config: VllmConfig) -> list[Check]:
    parallel = vllm_config.parallel_config
    return [
        (parallel.data_parallel_size > 1, "data parallelism"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism"),
        (parallel.prefill_context_parallel_size > 1, "prefill context parallelism"),
        (parallel.enable_expert_parallel, "expert parallelism"),
        (parallel.use_ubatching, "dual batch overlap"),
    ]


def _engine(vllm_config: VllmConfig) -> list[Check]:
    from vllm.config import CompilationMode

    model, cache, compilation = (
        vllm_config.model_config,
        vllm_config.cache_config,
        vllm_config.compilation_config,
    )
    graphs = compilation.cudagraph_mode
    extra = vllm_config.additional_config
    both = isinstance(extra, dict) and extra.get("decode_backend", "auto") != "auto"
    name = "NONE" if graphs is None else graphs.name
    return [
        (both, "decode_backend beside it: vLLM's specialized decode is for Blackwell"),
        (vllm_config.lora_config is not None, "LoRA"),
        (model.enable_sleep_mode, "sleep mode"),
        (not vllm_config.use_v2_model_runner, "the V1 model runner"),
        (compilation.mode == CompilationMode.STOCK_TORCH_COMPILE, "torch.compile of the whole model"),
        (
            name not in FULL_GRAPHS,
            f"CUDA graphs {name}: it needs {' or '.join(FULL_GRAPHS)} (no --enforce-eager)",
        ),
        (cache.use_replayssm or cache.use_kda_recoverssm, "ReplaySSM (--use-replayssm)"),
        (_offloads(vllm_config), "weights offloaded to the CPU"),
    ]


def _offloads(vllm_config: VllmConfig) -> bool:
    offload = getattr(vllm_config, "offload_config", None)
    found = (getattr(getattr(offload, part, None), name, 0) for part, name in _OFFLOAD)
    return any(bool(value) for value in found)


_OFFLOAD = (("uva", "cpu_offload_gb"), ("prefetch", "offload_group_size"))


def _speculation(vllm_config: VllmConfig) -> list[Check]:
    spec = vllm_config.speculative_config
    if spec is None:
        return []
    return [
        (spec.num_speculative_tokens > MAX_DRAFTS, f"more than {MAX_DRAFTS} draft tokens"),
        (spec.enable_adaptive_verification, "adaptive verification"),
        (
            spec.num_speculative_tokens_per_batch_size is not None,
            "a number of draft tokens that depends on the batch size",
        ),
    ]
