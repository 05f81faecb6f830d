"""A step of the decoder as one loop over layers and slots, and where kernels of a step may overlap.

A layer is four calls: *mix* the attention residuals, *attend*, *mix* again, *feed forward*. ``run`` is the loop; it
knows neither the engine nor the operators. Whoever serves a step fills the slots: the reference in PyTorch, our
kernels, or an engine's own modules, layer by layer and slot by slot.

A chain of kernels with programmatic dependent launch may overlap in two ways (see ``Overlap``). Which promises hold
depends on the neighbours alone, so they are derived here from the list of launches, never written down by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from runtime.kernels.common.launch.overlap import Overlap


class Slot(StrEnum):
    """What can be provided apart from the rest of a layer.

    ``MIX`` is both mixtures of a layer, and the last one. ``ATTEND`` is the attention of KDA layers, ``ATTEND_MLA``
    that of MLA layers.
    """

    MIX = "mix"
    ATTEND = "attend"
    ATTEND_MLA = "attend_mla"
    FEED_FORWARD = "feed_forward"


@dataclass(frozen=True)
class Residual:
    """Per-token residual state of one step: prefix [T,D], pending delta [T,D] or None, blocks [T,B,D]."""

    prefix: Tensor
    delta: Tensor | None
    blocks: Tensor

    def attended(self, attention: Tensor, starts_block: bool) -> Residual:
        """Take the attention output [T,D]: a layer that starts a block restarts the prefix with it."""
        if starts_block:
            return Residual(attention, None, self.blocks)
        return Residual(self.prefix, attention, self.blocks)

    def fed(self, output: Tensor) -> Residual:
        """Take the feed-forward output [T,D], which the next mixture adds."""
        return Residual(self.prefix, output, self.blocks)


UNMEASURED = frozenset({Slot.ATTEND_MLA})
"""Slots whose kernels no GPU has run yet: `all` leaves them to the engine, and they must be named."""

Mix = Callable[[Residual], tuple[Tensor, Residual]]
"""Adds the pending delta, stores a block where the layer starts one, mixes: (input of the next block [T,D], state)."""
Block = Callable[[Tensor], Tensor]
"""[T,D] → [T,D], summed over the tensor-parallel group."""


@dataclass(frozen=True)
class LayerSlots:
    """One layer, ready to run. ``index`` is 0-based and counts over all pipeline stages."""

    index: int
    starts_block: bool
    mix_attention: Mix
    attend: Block
    mix_feed_forward: Mix
    feed_forward: Block


def run(
    layers: Iterable[LayerSlots],
    residual: Residual,
    after_layer: Callable[[int, Residual], None] | None = None,
) -> Residual:
    """Run ``layers`` in order; ``after_layer`` sees the state after each of them. Returns the state after the last."""
    for layer in layers:
        x, residual = layer.mix_attention(residual)
        residual = residual.attended(layer.attend(x), layer.starts_block)
        x, residual = layer.mix_feed_forward(residual)
        residual = residual.fed(layer.feed_forward(x))
        if after_layer is not None:
            after_layer(layer.index, residual)
    return residual


@dataclass(frozen=True)
class SlotChoice:
    """Which slots are ours: per slot the layers, or None for all of them. A slot that is not named is the engine's."""

    layers: tuple[tuple[Slot, frozenset[int] | None], ...]

    def ours(self, slot: Slot, layer: int | None) -> bool:
        """Whether ``slot`` of ``layer`` is ours; the last mixture belongs to no layer (None), and counts if all do."""
        chosen = dict(self.layers)
        if slot not in chosen:
            return False
        return (only := chosen[slot]) is None or layer in only

    @property
    def label(self) -> str:
        """The canonical text that ``parse`` reads: `mix,attend@0-3`, or `none`."""
        parts = [slot if only is None else f"{slot}@{_spans(only)}" for slot, only in self.layers]
        return ",".join(parts) or "none"

    @classmethod
    def parse(cls, text: str) -> SlotChoice:
        """Read `all`, `none` or a comma list of `slot` and `slot@layers`, layers as `5` or `0-11` joined by `+`.

        `all` is every slot but the ``UNMEASURED`` ones.

        Raises ``ValueError`` that names what was not understood.
        """
        words = [word for word in (part.strip() for part in text.split(",")) if word]
        if not words:
            raise ValueError("no slots are named; say `none` to take all from the engine")
        if words == ["none"]:
            return cls(())
        if words == ["all"]:
            return cls(tuple((slot, None) for slot in Slot if slot not in UNMEASURED))
        found: dict[Slot, frozenset[int] | None] = {}
        for word in words:
            name, at, spans = word.partition("@")
            if name not in list(Slot):
                raise ValueError(f"unknown slot {name!r}; known are {', '.join(Slot)}, all, none")
            if name in found:
                raise ValueError(f"slot {name!r} is named twice")
            found[Slot(name)] = _layers(spans) if at else None
        return cls(tuple((slot, found[slot]) for slot in Slot if slot in found))


def _layers(text: str) -> frozenset[int]:
    layers: set[int] = set()
    for span in text.split("+"):
        first, dash, last = span.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(f"layers are numbers or spans such as 0-11, joined by +; got {text!r}")
        layers.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(layers)


def _spans(layers: frozenset[int]) -> str:
    spans: list[list[int]] = []
    for layer in sorted(layers):
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


@dataclass(frozen=True)
class Launch:
    """One kernel on the step's stream, as its neighbours see it.

    op: whose kernel. layer: 0-based, None for the last mixture. ours: whether it keeps the rule of ``Overlap``; an
    engine's kernel, a collective and anything on another stream does not. state: the buffers that it could read before
    its dependency wait, were they settled; a kernel without state reads only weights there. writes: what it writes.
    """

    op: str
    layer: int | None
    ours: bool = True
    state: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


def overlaps(launches: Sequence[Launch]) -> list[Overlap]:
    """The promises that hold for each launch of a chain.

    *settled* needs a predecessor that is ours, starts its successor only after its own wait, and writes none of the
    state. *early_trigger* needs a successor that is ours and has no state to read early. A launch without state makes
    no promise: it has nothing to gain.
    """
    found: list[Overlap] = []
    for i, launch in enumerate(launches):
        before = launches[i - 1] if i else None
        after = launches[i + 1] if i + 1 < len(launches) else None
        if not launch.ours or not launch.state:
            found.append(Overlap())
            continue
        settled = (
            before is not None
            and before.ours
            and not found[i - 1].early_trigger
            and not launch.state & before.writes
        )
        found.append(Overlap(settled, after is not None and after.ours and not after.state))
    return found


@dataclass(frozen=True)
class Buffers:
    """What our kernels write, allocated once for the largest step; every tensor is BF16 and contiguous.

    x [rows,D]: input of the next block. projected [rows,P] and y [rows,Y]: inside attention. attention [rows,D]: its
    output; prefix [rows,D]: the same where a layer starts a block, because it then lives until the next block starts.
    blocks [rows,B,D].
    """

    x: Tensor
    projected: Tensor
    y: Tensor
    attention: Tensor
    prefix: Tensor
    blocks: Tensor

    @classmethod
    def allocate(
        cls, rows: int, hidden: int, blocks: int, projected: int, y: int, device: torch.device
    ) -> Buffers:
        """Zeroed buffers of these sizes."""

        def make(*shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=torch.bfloat16, device=device)

        return cls(make(hidden), make(projected), make(y), make(hidden), make(hidden), make(blocks, hidden))

    def head(self, rows: int) -> Buffers:
        """Views of the first ``rows`` rows."""
        return Buffers(*(getattr(self, name)[:rows] for name in self.__dataclass_fields__))

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(getattr(self, name).nbytes for name in self.__dataclass_fields__)
