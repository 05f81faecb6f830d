"""Kimi K3 as vLLM builds it for CUDA, with the Hopper executor on vLLM's own seam for a specialized decode.

Registered under vLLM's name of the text model, which also builds the language model of the multimodal wrapper. Without
the switch (``setup.SWITCH``) it is vLLM's class unchanged.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.config import VllmConfig
from vllm.models.kimi_k3.nvidia.model import KimiLinearForCausalLM

from runtime.engine.hopper import record, weights
from runtime.engine.hopper.setup import HOPPER, RefusedError, hopper_setup

logger = logging.getLogger("vllm.k3_runtime")


class K3Hopper(KimiLinearForCausalLM):
    """vLLM's model; ``forward`` and the logits are inherited, and the final norm stays with the logits."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        hopper = hopper_setup(vllm_config)  # refuses before any weight is made
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.hopper = hopper
        if hopper.wanted:
            # vLLM's model state builds the executor when this is not None
            self.specialized_decode_config = hopper
        elif hopper.refused:
            self._fall_back(hopper.refused)

    def build_specialized_decode(self) -> None:
        """Called by vLLM's model state once the weights are loaded."""
        if not self.hopper.wanted:
            super().build_specialized_decode()
            return
        from runtime.engine.hopper.executor import HopperDecode

        reasons = weights.problems(self.model, self.hopper.slots)
        decode: Any = None if reasons else HopperDecode(self.model, self.hopper)
        if reasons := reasons or decode.fallbacks():
            if self.hopper.asked == HOPPER:
                raise RefusedError(reasons)
            self._fall_back(reasons)
            return
        self.specialized_decode = decode
        logger.info(
            "Hopper executor: slots %s are ours, decode graphs of %s rows, %.1f MiB of buffers",
            self.hopper.slots.label,
            ", ".join(map(str, self.hopper.rows)),
            decode.buffers.nbytes / 2**20,
        )

    def _fall_back(self, reasons: Any) -> None:
        record.refused(tuple(reasons))
        logger.warning("Hopper executor: vLLM's own decode is served: %s", "; ".join(reasons))
