"""Tells the witness what the Hopper executor decided: which graphs hold its steps, and why it is not served."""

from __future__ import annotations

from collections.abc import Mapping

from runtime import witness


def decided(specialized: bool, slots: str) -> None:
    """``plan`` answered; counts while a graph is being captured. ``slots``: ours, as ``SlotChoice.label``."""
    witness.decide(witness.Content(specialized=specialized, slots=slots if specialized else ""))


def kernels(per_layer: Mapping[str, float]) -> None:
    """Kernels of a layer, by kind of layer, of the graph that is being captured."""
    witness.kernels(per_layer)


def refused(reasons: tuple[str, ...]) -> None:
    """vLLM's own decode is served although ours was asked for."""
    page = witness.current()
    if page is not None:
        page.about["refused"] = list(reasons)
