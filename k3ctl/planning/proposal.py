"""A resolved configuration on given hardware, with vLLM's own defaults filled in: what the rules look at.

Defaults are vLLM 0.33.0's; the comparison with the real vLLM in ``tests/planning`` covers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.errors import UsageError
from k3ctl.facts.k3 import BF16, FP32, K3, K3_MOE, MAX_POSITIONS, is_k3_moe
from k3ctl.facts.products import PRODUCTS
from k3ctl.planning import budget
from k3ctl.planning.hardware import Hardware
from k3ctl.planning.kvcache import CacheSettings
from k3ctl.planning.memory import DRAFTER_MLA_LAYERS, GIB, Settings
from k3ctl.planning.weights import Parallel
from k3ctl.profiles import settings
from k3ctl.profiles.resolve import ResolvedConfig

DEFAULT_UTILIZATION = 0.92
LAYERWISE_KEY = "use_layerwise"
MAX_CONFIG_BYTES = 16 << 20
"""Longest ``config.json`` of a model; those with quantization tables have a few MB."""


@dataclass(frozen=True)
class Workload:
    """What the server is expected to carry."""

    concurrency: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def sequence_tokens(self) -> int | None:
        """Length of one sequence, where it is known."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)


UNKNOWN = Workload()
"""Nothing is said about the workload."""


@dataclass(frozen=True)
class Proposal:
    """One configuration, the hardware it is planned for (None: what the profile requires), the workload."""

    config: ResolvedConfig
    hardware: Hardware | None = None
    workload: Workload = UNKNOWN
    vllm: str = "0.33.0"
    """Version of the vLLM that will run it."""

    def arg(self, key: str, default: Any = None) -> Any:
        """A vLLM argument by dotted key, or ``default``."""
        return self.config.get(key, default)

    def env(self, name: str) -> str | None:
        """A variable of the engine's environment: typed, else already set on the hosts, else the profile's."""
        on_hosts = (self.hardware.environment or {}) if self.hardware else {}
        if name in on_hosts and not self.config.insists_on(name):
            return on_hosts[name]
        return self.config.env.get(name)

    def env_flag(self, name: str) -> bool | None:
        """A boolean variable; None when it is not set."""
        value = self.env(name)
        return None if value is None else value.strip().lower() in {"1", "true", "yes", "on"}

    @property
    def has_runtime(self) -> bool:
        """k3ctl's runtime plugin is loaded: no list of plugins is given, or it is on it."""
        listed = self.env("VLLM_PLUGINS")
        return listed is None or "k3_runtime" in [name.strip() for name in listed.split(",")]

    @property
    def on_cpu(self) -> bool:
        """The CPU engine is meant."""
        return self.config.profile.requires.gpus == 0

    @cached_property
    def parallel(self) -> Parallel:
        """Tensor, pipeline, data, context and expert parallelism."""
        tp, pp, dp = settings.parallel_sizes(self.config)
        return Parallel(
            tp=tp,
            pp=pp,
            dp=dp,
            dcp=self.arg("decode_context_parallel_size", 1),
            expert_parallel=bool(self.arg("enable_expert_parallel", False)),
        )

    @property
    def backend(self) -> str:
        """``decode_backend`` as vLLM reads it."""
        return settings.decode_backend(self.config)

    @property
    def specialized(self) -> bool:
        """The specialized path is asked for."""
        return self.backend == settings.SPECIALIZED

    @property
    def speculator(self) -> Mapping[str, Any] | None:
        """The speculative configuration; None without speculation."""
        return settings.speculator(self.config)

    @property
    def method(self) -> str | None:
        """Speculation method; None without speculation."""
        return settings.method(self.config)

    @property
    def draft_tokens(self) -> int:
        """K, 0 without speculation."""
        return settings.draft_tokens(self.config)

    @property
    def query(self) -> int:
        """Query tokens of one request in a decode step: 1 + K."""
        return 1 + self.draft_tokens

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability; from the profile's product where no hardware is given."""
        if self.hardware is not None:
            return self.hardware.capability
        token = next(iter(self.config.profile.requires.gpu), "")
        return PRODUCTS[token].capability if token in PRODUCTS else None

    @property
    def gpu_bytes(self) -> int:
        """Memory of one GPU; from the profile's product where no hardware is given."""
        if self.hardware is not None and self.hardware.gpu_bytes:
            return self.hardware.gpu_bytes
        token = next(iter(self.config.profile.requires.gpu), "")
        return PRODUCTS[token].memory_bytes if token in PRODUCTS else 0

    @property
    def defaults(self) -> budget.Defaults:
        """vLLM's batch limits for this GPU when they are not given."""
        return budget.defaults(self.gpu_bytes, performance_mode=str(self.arg("performance_mode", "")))

    @property
    def max_num_seqs(self) -> int:
        """Most requests in a step."""
        return int(self.arg("max_num_seqs", self.defaults.max_num_seqs))

    @property
    def max_num_batched_tokens(self) -> int:
        """Most tokens in a step."""
        return int(self.arg("max_num_batched_tokens", self.defaults.max_num_batched_tokens))

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence; None for ``auto`` (as long as the memory allows)."""
        value = self.arg("max_model_len", MAX_POSITIONS)
        return None if value in ("auto", -1) else int(value)

    @property
    def kv_dtype(self) -> str:
        """``kv_cache_dtype``."""
        return str(self.arg("kv_cache_dtype", "auto"))

    @property
    def fp8_kv(self) -> bool:
        """The MLA cache holds plain FP8."""
        return self.kv_dtype in {"fp8", "fp8_e4m3"}

    @property
    def prefix_caching(self) -> bool:
        """Prefix caching; on by default for this model."""
        return bool(self.arg("enable_prefix_caching", True))

    @property
    def kda_dtypes(self) -> tuple[str, str]:
        """Dtypes of the KDA state: convolution window, recurrent matrix."""
        model = str(self.arg("dtype", "auto"))
        conv = str(self.arg("mamba_cache_dtype", "auto"))
        recurrent = str(self.arg("mamba_ssm_cache_dtype", "auto"))
        if conv == "auto":
            conv = {"auto": "bfloat16", "half": "float16", "float": "float32"}.get(model, model)
        return conv, "float32" if recurrent == "auto" else recurrent

    @property
    def connectors(self) -> tuple[Mapping[str, Any], ...]:
        """KV connectors, the children of a ``MultiConnector`` included."""
        transfer = self.arg("kv_transfer_config")
        if not isinstance(transfer, Mapping) or not transfer.get("kv_connector"):
            return ()
        children = transfer.get("kv_connector_extra_config", {}).get("connectors", [])
        return (transfer, *children)

    @property
    def piecewise_connector(self) -> str | None:
        """The KV connector that forces PIECEWISE graphs, if there is one."""
        for connector in self.connectors:
            extra = connector.get("kv_connector_extra_config", {})
            if connector.get("kv_connector") == "LMCacheConnectorV1" and extra.get(LAYERWISE_KEY):
                return "LMCacheConnectorV1"
        return None

    @cached_property
    def graph_mode(self) -> tuple[str, str]:
        """(mode of decode graphs: FULL, PIECEWISE or NONE; what decides it)."""
        if self.arg("enforce_eager", False):
            return "NONE", "enforce_eager"
        if self.piecewise_connector:
            return "PIECEWISE", f"KV connector {self.piecewise_connector} with {LAYERWISE_KEY}"
        mode = self.arg("compilation_config.cudagraph_mode")
        if mode is not None:
            name = {0: "NONE", 1: "PIECEWISE", 2: "FULL"}.get(mode, str(mode).upper())
            decode = "FULL" if name.startswith("FULL") else name
            return decode, f"compilation_config.cudagraph_mode is {name}"
        if str(self.arg("optimization_level", 2)) == "0":
            return "NONE", "optimization_level is 0"
        return "FULL", "default"

    @property
    def capture_sizes(self) -> tuple[int, ...] | None:
        """Capture sizes given by the user."""
        given = self.arg("cudagraph_capture_sizes", self.arg("compilation_config.cudagraph_capture_sizes"))
        return tuple(int(size) for size in given) if given else None

    @property
    def max_capture_size(self) -> int | None:
        """Largest capture size given by the user."""
        key = "max_cudagraph_capture_size"
        given = self.arg(key, self.arg(f"compilation_config.{key}"))
        return int(given) if given is not None else None

    @cached_property
    def k3_moe(self) -> bool:
        """Whether the model has Kimi K3's MoE: by its config where that is at hand, else by its name."""
        overrides = self.arg("hf_overrides", {})
        changed = overrides.get("text_config", {}) if isinstance(overrides, Mapping) else {}
        if self._model_config is not None:
            return is_k3_moe({**self._model_config, **changed})
        if "kimi-k3" not in self.config.model.lower():
            return False
        return is_k3_moe({**K3_MOE, **changed})

    @cached_property
    def _model_config(self) -> Mapping[str, Any] | None:
        """The model's text config, where its directory is at hand."""
        path = Path(self.config.model, "config.json")
        if not path.is_file():
            return None
        config = files.parse_json(files.text(path, MAX_CONFIG_BYTES), f"`{path}`")
        text = config.get("text_config", config) if isinstance(config, Mapping) else None
        if not isinstance(text, Mapping):
            raise UsageError(f"`{path}` is no model's configuration", hint="expected a JSON object")
        return text

    @cached_property
    def whole_k3(self) -> bool:
        """Whether the weights are as many as Kimi K3's: by the config at hand, else by the names."""
        config = self._model_config
        if config is not None:
            return config.get("num_hidden_layers") == K3.layers and config.get("hidden_size") == K3.hidden
        names = (self.config.model, self.config.profile.model.id or "")
        return any("kimi-k3" in name.lower() for name in names)

    @property
    def memory_settings(self) -> Settings:
        """The inputs of the memory plan."""
        dspark = self.method == "dspark"
        cache = CacheSettings(
            parallel=self.parallel,
            kv_dtype=self.kv_dtype,
            ssm_bytes=FP32 if self.kda_dtypes[1] == "float32" else BF16,
            draft_tokens=self.draft_tokens,
            prefix_caching=self.prefix_caching,
            replayssm=bool(self.arg("use_replayssm", False)),
            checkpoint_export=self.flashkda,
            drafter_mla_layers=DRAFTER_MLA_LAYERS if dspark else 0,
        )
        return Settings(
            parallel=self.parallel,
            gpu_bytes=self.gpu_bytes,
            gpu_memory_utilization=float(self.arg("gpu_memory_utilization", DEFAULT_UTILIZATION)),
            cache=cache,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            specialized=self.specialized,
            flashkda=self.flashkda,
            kv_cache_memory_bytes=self.arg("kv_cache_memory_bytes"),
        )

    @property
    def flashkda(self) -> bool:
        """FlashKDA is the prefill kernel: the automatic choice, and the one that exports checkpoints."""
        chosen = self.arg("kda_prefill_backend", self.arg("additional_config.kda_prefill_backend", "auto"))
        return chosen in {"auto", "flashkda"}

    @property
    def gpu_gib(self) -> float:
        """Memory of one GPU in GiB."""
        return self.gpu_bytes / GIB
