"""What a resolved configuration means, in vLLM 0.33.0's own reading: decode path, speculation, parallel sizes.

Pure. The one place for it: plan judges these values, and every other command describes a server by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3ctl.profiles.resolve import ResolvedConfig

SPECIALIZED = "latency_specialized"
"""Value of ``decode_backend`` that asks for the specialized path."""
HOPPER = "hopper"
"""Value of the runtime's own switch, ``k3_decode``, that asks for its decode path on Hopper."""


def decode_backend(config: ResolvedConfig) -> str:
    """``decode_backend`` as vLLM reads it; a misspelt key counts as ``auto``."""
    extra = config.get("additional_config", {})
    return str(extra.get("decode_backend", "auto")) if isinstance(extra, Mapping) else "auto"


def own_decode(config: ResolvedConfig) -> str:
    """``k3_decode`` as the runtime reads it: `stock` where it is not given."""
    extra = config.get("additional_config", {})
    return str(extra.get("k3_decode", "stock")) if isinstance(extra, Mapping) else "stock"


def speculator(config: ResolvedConfig) -> Mapping[str, Any] | None:
    """The speculative configuration; None without speculation."""
    spec = config.get("speculative_config")
    if isinstance(spec, Mapping):
        return spec
    method = config.get("spec_method")
    if not method and not config.get("spec_model"):
        return None
    fields = {
        "method": method,
        "model": config.get("spec_model"),
        "num_speculative_tokens": config.get("spec_tokens", 0),
    }
    return {key: value for key, value in fields.items() if value is not None}


def method(config: ResolvedConfig) -> str | None:
    """Speculation method; guessed from the drafter's name where it is not given. None without speculation."""
    spec = speculator(config)
    if spec is None:
        return None
    given = spec.get("method")
    if given:
        return str(given)
    return "dspark" if "dspark" in str(spec.get("model", "")).lower() else "draft_model"


def draft_tokens(config: ResolvedConfig) -> int:
    """K, 0 without speculation."""
    spec = speculator(config)
    return int(spec.get("num_speculative_tokens", 0)) if spec else 0


def parallel_sizes(config: ResolvedConfig) -> tuple[int, int, int]:
    """Tensor, pipeline and data parallel sizes."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    tp, pp, dp = (int(config.get(name, 1)) for name in names)
    return tp, pp, dp
