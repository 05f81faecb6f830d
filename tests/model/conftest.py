"""One tiny model for the session."""

from __future__ import annotations

import pytest
import torch

from runtime.model.config import TINY
from runtime.model.model import K3Model
from runtime.model.weights import load_module, seeded_weights


@pytest.fixture(scope="session")
def tiny() -> K3Model:
    torch.set_num_threads(1)  # tensors are tiny: threads cost more than they bring
    model = K3Model(TINY)
    load_module(model, seeded_weights(TINY))
    return model
