"""Worker extension (``--worker-extension-cls``): lets the API server ask every rank for its witness page."""

from __future__ import annotations

from typing import Any

from runtime import witness

EXTENSION = "runtime.engine.worker.WitnessExtension"


class WitnessExtension:
    """Mixed into vLLM's worker class; names are prefixed so that they cannot collide."""

    def k3_witness(self) -> dict[str, Any] | None:
        """This rank's page, or None before a model is loaded."""
        found = witness.current()
        return found.page() if found is not None else None
