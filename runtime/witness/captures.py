"""Decisions bound to captures. Standard library only.

What a CUDA graph holds is decided while it is captured, and replayed ever after. Whoever chooses the path of a step
(vLLM's ``SpecializedDecode.plan``, an executor of our own) says so every time it is asked; almost always nothing is
captured then: in the warm-up before every capture, in eager steps, in profiling. A decision therefore counts only while
the forward pass of a known descriptor is open *and* the stream that runs it is being captured, and it belongs to that
descriptor of those graphs, until the graph is captured again.

An executor of our own needs two calls::

    def plan(self, positions, intermediate_tensors):
        step = ...                                   # None: the stock path runs
        witness.decide(Content(specialized=step is not None, slots="attn_res,kda"))
        return step

    def run(self, step, ...):
        ...
        witness.kernels({"KDA + MoE": 12.0})         # counted from the capture itself; optional

Both may be called at any time; outside a capture they do nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

MIXED = "mixed"
"""The slots of a capture whose parts were decided differently."""


@dataclass(frozen=True)
class Content:
    """What one captured graph holds.

    ``specialized``: a decode step of the specialized path. ``slots``: which slots of that path are our own kernels,
    comma separated, in the executor's own order; empty where a path has no slots to choose. ``kernels``: kernels of a
    layer, by kind of layer; empty when nobody counted them.
    """

    specialized: bool
    slots: str = ""
    kernels: Mapping[str, float] = field(default_factory=dict, hash=False)


STANDARD = Content(specialized=False)


class Captures:
    """Which graph holds what. ``capturing``: whether the current stream is being captured now.

    ``current`` names the owner and descriptor of a capture that nobody opened with ``bound``, or None: vLLM's V1 runner
    keeps them in the forward context. ``changed`` is called when a graph's content may have changed.
    """

    def __init__(
        self,
        capturing: Callable[[], bool],
        current: Callable[[], tuple[Any, Hashable] | None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._capturing, self._current, self._changed = capturing, current, changed
        # by the owner of the graphs: managers (of target and drafter, of profiling and serving) have equal descriptors
        self._found: WeakKeyDictionary[Any, dict[Hashable, Content]] = WeakKeyDictionary()
        self._answers: list[Content] | None = None
        self._kernels: dict[str, float] = {}
        self._reading = threading.Lock()  # pages are made on other threads

    def bound(self, owner: Any, descriptor: Hashable, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward``, and what is decided while it runs is the content of ``owner``'s graph for ``descriptor``."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._set(owner, descriptor, STANDARD)  # a capture that fails leaves no graph
            self._answers, self._kernels = [], {}
            try:
                result = forward(*args, **kwargs)
                self._set(owner, descriptor, _combined(self._answers, self._kernels))
            finally:
                self._answers = None
            return result

        return watched

    def decide(self, content: Content) -> bool:
        """Say what the step that runs now holds; returns whether that is being captured."""
        if not self._capturing():
            return False
        if self._answers is not None:
            self._answers.append(content)
            return True
        if (found := self._current()) is None:
            return False
        self._set(*found, content)
        return True

    def kernels(self, per_layer: Mapping[str, float]) -> None:
        """Kernels of a layer by kind of layer, of the graph that is being captured now."""
        if self._answers is not None and self._capturing():
            self._kernels.update(per_layer)

    def holds(self, owner: Any, descriptor: Hashable) -> Content:
        """The content of a captured graph; ``STANDARD`` when nobody decided otherwise."""
        graphs = self._found.get(owner, {}) if owner is not None else {}
        return graphs.get(descriptor, STANDARD)

    def all(self) -> list[tuple[Any, Content]]:
        """Every graph that was decided about, of every owner that still lives."""
        with self._reading:
            return [pair for graphs in self._found.values() for pair in graphs.items()]

    def _set(self, owner: Any, descriptor: Hashable, content: Content) -> None:
        with self._reading:
            self._found.setdefault(owner, {})[descriptor] = content
        self._changed()


def _combined(answers: list[Content], kernels: Mapping[str, float]) -> Content:
    """The content of one graph: specialized only when every part of it was (microbatches decide one by one)."""
    if not answers or not all(answer.specialized for answer in answers):
        return STANDARD
    slots = {answer.slots for answer in answers}
    counted = {kind: n for answer in answers for kind, n in answer.kernels.items()} | dict(kernels)
    return replace(answers[0], slots=answers[0].slots if len(slots) == 1 else MIXED, kernels=counted)


_recorded: Captures | None = None


def record_captures(captures: Captures) -> None:
    """Make ``captures`` the ones of this process."""
    global _recorded  # noqa: PLW0603  # one engine worker per process
    _recorded = captures


def decide(content: Content) -> bool:
    """``Captures.decide`` of this process; False where nothing records captures."""
    return _recorded is not None and _recorded.decide(content)


def kernels(per_layer: Mapping[str, float]) -> None:
    """``Captures.kernels`` of this process."""
    if _recorded is not None:
        _recorded.kernels(per_layer)
