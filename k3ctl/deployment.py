"""What is known about a server that runs: from the record of its launch, never from a file that may have changed.

One ``Deployment`` for every command that describes a server. A server that k3ctl did not start gives one with
unknowns; what its own metrics and witness say may fill them (``known_from``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from k3ctl.engine import record
from k3ctl.engine.rundir import Run
from k3ctl.facts import products
from k3ctl.facts.products import GpuProduct
from k3ctl.profiles import settings

if TYPE_CHECKING:
    from k3ctl.profiles.resolve import ResolvedConfig

CPU = "none (CPU)"
"""``gpu`` of a deployment on the CPU engine."""


@dataclass(frozen=True)
class Deployment:
    """What a number or a judgement depends on besides the workload; None: not known.

    ``gpu``: token of ``facts.products``, or ``CPU``. ``gpus``: over all nodes. ``speculator``: the method, empty
    without speculation. ``acceptance``: ``none``, ``real`` or ``synthetic``. ``traces``: where its profiler writes,
    empty without one.
    """

    profile: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    tensor_parallel_size: int | None = None
    decode_backend: str | None = None
    num_speculative_tokens: int | None = None
    acceptance: str | None = None
    synthetic_acceptance_length: float | None = None
    prefix_caching: bool | None = None
    vllm: str | None = None
    speculator: str | None = None
    stream_interval: int | None = None
    traces: str | None = None

    @property
    def requested(self) -> bool | None:
        """The launch asked for the specialized path."""
        return None if self.decode_backend is None else self.decode_backend == settings.SPECIALIZED

    @property
    def product(self) -> GpuProduct | None:
        """The row of its GPUs; None on a CPU, and where the GPU is unknown."""
        return products.token(self.gpu) if self.gpu else None

    def json(self) -> dict[str, Any]:
        """Plain data for results; what only later versions know is left out where it is unknown."""
        later = {"speculator", "stream_interval"}
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "traces" and (value is not None or name not in later)
        }

    def known_from(self, facts: Mapping[str, Any]) -> Deployment:
        """The same with what was unknown filled from ``facts``; what is known stays."""
        fresh = {
            name: value for name, value in facts.items() if value is not None and getattr(self, name) is None
        }
        return replace(self, **fresh)


UNKNOWN = Deployment()
"""A server of which only the address is known."""


def of_run(run: Run | None) -> Deployment:
    """What the record of ``run`` says; unknown for no run, and for one without a record."""
    config = record.config(run) if run is not None else None
    if run is None or config is None:
        return UNKNOWN
    seen = run.launch.get("gpus")
    names = (
        [str(gpu.get("name")) for gpu in seen if isinstance(gpu, Mapping)] if isinstance(seen, list) else []
    )
    product = products.common(names) if names else None
    return of_config(config, gpu=product.token if product else None, vllm=run.vllm or None)


def of_config(config: ResolvedConfig, *, gpu: str | None = None, vllm: str | None = None) -> Deployment:
    """What a configuration says about the server it starts; ``gpu`` is the product that was seen."""
    tp, pp, dp = settings.parallel_sizes(config)
    spec = settings.speculator(config)
    synthetic = spec is not None and spec.get("rejection_sample_method") == "synthetic"
    prefix = config.get("enable_prefix_caching")
    return Deployment(
        profile=config.profile.name,
        gpu=gpu if config.profile.requires.gpus else CPU,
        gpus=tp * pp * dp,
        tensor_parallel_size=tp,
        decode_backend=settings.decode_backend(config),
        num_speculative_tokens=settings.draft_tokens(config),
        acceptance="none" if not spec else "synthetic" if synthetic else "real",
        synthetic_acceptance_length=spec.get("synthetic_acceptance_length") if spec else None,
        prefix_caching=None if prefix is None else bool(prefix),
        vllm=vllm,
        speculator=settings.method(config) or "",
        stream_interval=int(config.get("stream_interval", 1)),
        traces=_traces(config),
    )


def _traces(config: ResolvedConfig) -> str:
    wanted = config.get("profiler_config")
    return str(wanted.get("torch_profiler_dir") or "") if isinstance(wanted, Mapping) else ""
