"""vLLM's general plugin: called once in every process (API server, engine core, workers, registry subprocess).

It registers our model classes: where vLLM has no K3 for the platform (CPU), and the text model that can serve decode
steps through our executor (CUDA); and the seeded load format of the tiny model.
Nothing here builds anything: the engine does that when it needs to. Idempotent.
"""

from __future__ import annotations

import logging
import os

from runtime import parent_death
from runtime.versions import KNOWN_VLLM, vllm_version

logger = logging.getLogger("vllm.k3_runtime")

TEXT_ARCHITECTURE = "KimiLinearForCausalLM"
ARCHITECTURES = ("KimiK3ForConditionalGeneration", TEXT_ARCHITECTURE)


def register() -> None:
    """Entry point ``vllm.general_plugins: k3_runtime``."""
    parent_death.follow()
    from vllm.platforms import current_platform

    if vllm_version() not in KNOWN_VLLM:
        logger.warning(
            "k3 runtime: vLLM %s is not a version it was tested with (%s); counters may be missing",
            vllm_version(),
            ", ".join(sorted(KNOWN_VLLM)),
        )
    if current_platform.device_type == "cpu":
        _register_cpu()
    elif current_platform.is_cuda():
        _register_cuda()


def _register_cpu() -> None:
    from vllm import ModelRegistry

    from runtime.engine import upstream_fixes
    from runtime.engine.cpu import ops as cpu_ops
    from runtime.engine.cpu.model import K3ForCausalLM
    from runtime.engine.cpu.mtp import K3Mtp

    # The CPU platform takes any MLA-shaped config for its own CPU_MLA backend and then forces block size 16, no
    # chunked prefill and no prefix caching. Our latent cache needs none of that.
    os.environ.setdefault("VLLM_MLA_DISABLE", "1")
    cpu_ops.install()
    upstream_fixes.fix_expand(cpu_ops.expand_kernel_impl)
    upstream_fixes.fix_top_k_of_nothing()
    cpu_ops.set_local_world_size()
    # The classes themselves, not their names: vLLM inspects a name in a process of its own, so that CUDA stays
    # untouched. There is no CUDA here, and two such processes are a third of the first start.
    for architecture in ARCHITECTURES:
        ModelRegistry.register_model(architecture, K3ForCausalLM)
    ModelRegistry.register_model("KimiK3MTPModel", K3Mtp)
    _register_load_format()


def _register_cuda() -> None:
    """Our class of the text model, by name: vLLM's own with the Hopper executor, which a switch turns on."""
    from vllm import ModelRegistry

    from runtime.engine import upstream_fixes

    upstream_fixes.fix_pipeline_stream()
    ModelRegistry.register_model(TEXT_ARCHITECTURE, "runtime.engine.hopper.model:K3Hopper")


def _register_load_format() -> None:
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader

    from runtime.engine.cpu.loader import LOAD_FORMAT, SeededLoader

    if LOAD_FORMAT not in _LOAD_FORMAT_TO_MODEL_LOADER:
        register_model_loader(LOAD_FORMAT)(SeededLoader)
