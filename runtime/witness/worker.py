"""Worker extension (``--worker-extension-cls``): starts the witness of CUDA workers, and lets the API server ask every
rank for its page.
"""

from __future__ import annotations

import logging
from typing import Any

from runtime import witness
from runtime.versions import vllm_version

logger = logging.getLogger("vllm.k3_witness")


class WitnessExtension:
    """Mixed into vLLM's worker class; names are prefixed so that they cannot collide."""

    def init_worker_extension(self) -> None:
        """Called by vLLM after the device is up, before weights load. On CPU our model class counts by itself."""
        from vllm.platforms import current_platform

        if not current_platform.is_cuda():
            return
        from runtime.witness import cuda as cuda_witness

        try:
            cuda_witness.install(self.vllm_config)  # type: ignore[attr-defined]
        except (ImportError, AttributeError) as error:
            logger.error(
                "k3 witness: vLLM %s lacks a seam it counts by (%s): no step is counted",
                vllm_version(),
                error,
            )

    def k3_witness(self) -> dict[str, Any] | None:
        """This rank's page, or None before a model is loaded."""
        found = witness.current()
        return found.page() if found is not None else None
