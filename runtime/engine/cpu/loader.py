"""Load format ``k3_seeded``: weights are made at load from a seed; nothing is read or downloaded."""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from runtime.model.config import K3Config
from runtime.model.weights import seeded_weights

LOAD_FORMAT = "k3_seeded"


class SeededLoader(BaseModelLoader):
    """Feeds ``seeded_weights`` to the model's own ``load_weights``, as a checkpoint reader would.

    ``--model-loader-extra-config '{"seed": N}'`` chooses the seed (default 0).
    """

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing to download."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Fill ``model``, which is the target or its MTP drafter."""
        config = K3Config.from_hf(model_config.hf_config.to_dict())
        extra: Any = self.load_config.model_loader_extra_config or {}
        model.load_weights(seeded_weights(config, seed=int(extra.get("seed", 0))))
