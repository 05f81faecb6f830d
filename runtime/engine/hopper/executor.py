"""The Hopper executor: vLLM's seam for a specialized decode, answered with our loop.

Built once the weights are loaded, prepared for every bound cache, asked at every Python step and answering only while a
decode graph is captured. Serving replays those graphs. Everything that is not planned runs vLLM's own model.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from runtime.engine.hopper import capture, record, rows, stock, weights
from runtime.engine.hopper.setup import HopperSetup
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.mla.dispatch import Workspace
from runtime.kernels.mla.spec import Context
from runtime.model import step as loop
from runtime.model.decode import Path, plan
from runtime.model.providers.kda import KdaBlock, KdaRows, KdaWeights
from runtime.model.providers.kda import launches as kda_launches
from runtime.model.providers.mix import MixKernel, MixSite
from runtime.model.providers.mla import MlaBlock, MlaWeights
from runtime.model.providers.mla import launches as mla_launches
from runtime.model.providers.moe import MoeBlock, MoeBuffers
from runtime.model.providers.moe import launches as moe_launches
from runtime.model.step import Buffers, Launch, LayerSlots, Residual, Slot, SlotChoice

logger = logging.getLogger("vllm.k3_runtime")


@dataclass(frozen=True)
class Step:
    """A planned step: every layer's metadata, the pages of our MLA layers, and what vLLM's own modules ask for."""

    metadata: tuple[Any, ...]
    contexts: tuple[Context | None, ...]
    positions: Tensor
    intermediate_tensors: Any
    padding: Tensor | None


@dataclass(frozen=True)
class Bound:
    """One layer's kernels; None where the slot is vLLM's."""

    mix_attention: MixKernel | None
    attend: KdaBlock | None
    attend_mla: MlaBlock | None
    mix_feed_forward: MixKernel | None
    feed_forward: MoeBlock | None


class HopperDecode:
    """Owns the buffers and the bound kernels; reads vLLM's backbone, never modifies it.

    backbone: vLLM's ``KimiLinearModel`` (one pipeline stage of it). provider: as in the operators. ``kernels``: per
    size of a captured graph, its kernels by kind of layer and in all, as the capture itself counts them.
    """

    def __init__(self, backbone: Any, setup: HopperSetup, provider: str = "auto") -> None:
        self.backbone, self.setup, self.provider = backbone, setup, provider
        self.moe_provider = provider
        self.mla_provider = "cute"  # its slot is ours only where it is named
        self.moe_buffers: MoeBuffers | None = None
        self.mla_workspace: Workspace | None = None
        self.kernels: dict[int, dict[str, int]] = {}
        self.layers = tuple(backbone.layers[backbone.start_layer : backbone.end_layer])
        self.query_len = setup.query_len
        self.channels_first = stock.channels_first()
        # once: captured graphs keep the addresses, the FP32 copies among them
        self.kda = {
            d.layer_idx: weights.kda_weights(d.self_attn) for d in self.layers if weights.is_kda(d.self_attn)
        }
        readable = {d.layer_idx: weights.readable_mla(d.self_attn) for d in self.layers}
        self.mla = {index: found for index, found in readable.items() if found is not None}
        self.buffers = self._allocate()
        self.choose(setup.slots)

    def _allocate(self) -> Buffers:
        bound: list[KdaWeights | MlaWeights] = [*self.kda.values(), *self.mla.values()]
        projected = max((w.in_proj.shape[0] for w in bound), default=0)
        width = max((w.o_proj.shape[1] for w in bound), default=0)
        hidden = self.layers[0].input_layernorm.weight
        return Buffers.allocate(
            max(self.setup.rows, default=1),
            hidden.shape[0],
            self.backbone.num_attn_res_blocks,
            projected,
            width,
            hidden.device,
        )

    # ---- binding ------------------------------------------------------------------------------------------

    def choose(self, slots: SlotChoice) -> None:
        """Bind the kernels of ``slots``; graphs captured before keep what they hold."""
        self.slots = slots
        launches = self.launches()
        promised: defaultdict[tuple[str, int | None], deque[Overlap]] = defaultdict(deque)
        for launch, overlap in zip(launches, loop.overlaps(launches), strict=True):
            promised[launch.op, launch.layer].append(overlap)

        def mix(site: MixSite | None, layer: int | None) -> MixKernel | None:
            if site is None or not slots.ours(Slot.MIX, layer):
                return None
            return MixKernel(site, promised["attn_res", layer].popleft(), self.provider)

        def attend(layer: Any) -> KdaBlock | None:
            if not self._attends(layer):
                return None
            promise = promised["kda_decode", layer.layer_idx].popleft()
            return KdaBlock(
                self.kda[layer.layer_idx], promise, self.query_len, stock.all_reduce(), self.provider
            )

        def attend_mla(layer: Any) -> MlaBlock | None:
            if not self._attends_mla(layer):
                return None
            promise = promised["mla_core", layer.layer_idx].popleft()
            return MlaBlock(
                self.mla[layer.layer_idx], promise, self.query_len, stock.all_reduce(), self.mla_provider
            )

        def feed_forward(layer: Any) -> MoeBlock | None:
            if not self._feeds(layer):
                return None
            promise = promised["moe_experts", layer.layer_idx].popleft()
            return MoeBlock(weights.moe_weights(layer.mlp), promise, stock.all_reduce(), self.moe_provider)

        self.bound = tuple(
            Bound(
                mix(before, layer.layer_idx),
                attend(layer),
                attend_mla(layer),
                mix(after, layer.layer_idx),
                feed_forward(layer),
            )
            for layer, (before, after) in zip(self.layers, self._sites(), strict=True)
        )
        first = next((b.feed_forward for b in self.bound if b.feed_forward is not None), None)
        if first is not None and self.moe_buffers is None:
            self.moe_buffers = first.buffers(max(self.setup.rows, default=1))
        latent = next((b.attend_mla for b in self.bound if b.attend_mla is not None), None)
        if latent is not None and self.mla_workspace is None:
            self.mla_workspace = latent.workspace(max(self.setup.rows, default=1) // self.query_len)
        self.last = mix(self._last_site(), None)

    def fallbacks(self) -> list[str]:
        """Why our kernels would not be the ones that were measured, each reason once; empty if they are.

        cuBLAS in place of our projections is a choice by measured times, not a fallback.
        """
        bound = [
            part
            for layer in self.bound
            for part in (layer.mix_attention, layer.mix_feed_forward, layer.attend, layer.attend_mla)
        ]
        choices = [part.choice for part in (*bound, self.last) if part is not None]
        choices += [
            c for layer in self.bound if layer.feed_forward is not None for c in layer.feed_forward.choices
        ]
        return sorted({f"{c.op} would run {c.variant}: {c.reason}" for c in choices if c.fallback})

    def _feeds(self, layer: Any) -> bool:
        return weights.is_moe(layer.mlp) and self.slots.ours(Slot.FEED_FORWARD, layer.layer_idx)

    def _attends(self, layer: Any) -> bool:
        return layer.layer_idx in self.kda and self.slots.ours(Slot.ATTEND, layer.layer_idx)

    def _attends_mla(self, layer: Any) -> bool:
        return layer.layer_idx in self.mla and self.slots.ours(Slot.ATTEND_MLA, layer.layer_idx)

    def _sites(self) -> list[tuple[MixSite, MixSite]]:
        return [
            (
                weights.mix_before_attention(layer, first=layer is self.layers[0]),
                weights.mix_before_feed_forward(layer),
            )
            for layer in self.layers
        ]

    def _last_site(self) -> MixSite | None:
        return weights.last_mix(self.backbone) if stock.is_last_stage() else None

    def launches(self) -> list[Launch]:
        """The step's main stream as its kernels see each other; a stock slot counts as one unknown kernel."""
        found = [Launch("enter", None, ours=False)]

        def other(slot: Slot, layer: int | None) -> Launch:
            return Launch(f"stock {slot}", layer, ours=False)

        for layer, (before, after) in zip(self.layers, self._sites(), strict=True):
            index, mixes = layer.layer_idx, self.slots.ours(Slot.MIX, layer.layer_idx)
            found.append(before.launch if mixes else other(Slot.MIX, index))
            if self._attends(layer) or self._attends_mla(layer):
                launches = kda_launches if self._attends(layer) else mla_launches
                found += launches(index, layer.is_block_write_layer)
                if stock.all_reduce() is not None:
                    found.append(Launch("all_reduce", index, ours=False))
            else:
                found.append(other(Slot.ATTEND, index))
            found.append(after.launch if mixes else other(Slot.MIX, index))
            if self._feeds(layer):
                found += moe_launches(index)
            else:
                found.append(other(Slot.FEED_FORWARD, index))
        if (last := self._last_site()) is not None:
            found.append(last.launch if self.slots.ours(Slot.MIX, None) else other(Slot.MIX, None))
        return found

    # ---- vLLM's seam --------------------------------------------------------------------------------------

    def prepare_kv(self) -> None:
        """Compile and launch every kernel once, on padding slots of the bound cache: no state is touched.

        vLLM calls this for the cache that it profiles with, then for the real one; nothing of a cache is kept.
        """
        with torch.inference_mode():
            for size in self.setup.rows:
                self._launch_on_padding(size)
        if self.buffers.x.is_cuda:
            torch.cuda.synchronize()

    def _launch_on_padding(self, size: int) -> None:
        buffers, query_len = self.buffers.head(size), self.query_len
        residual = Residual(buffers.prefix, buffers.attention, buffers.blocks)
        slots = torch.zeros(size // query_len, query_len, dtype=torch.int32, device=buffers.x.device)
        accepted = torch.ones(size // query_len, dtype=torch.int32, device=buffers.x.device)
        for layer, bound in zip(self.layers, self.bound, strict=True):
            for mix in (bound.mix_attention, bound.mix_feed_forward):
                if mix is not None:
                    mix(
                        residual if mix.site.has_delta else Residual(buffers.prefix, None, buffers.blocks),
                        buffers.x,
                    )
            if bound.attend is not None:
                conv_state, state = layer.self_attn.kv_cache[:2]
                conv_state = conv_state.transpose(1, 2) if self.channels_first else conv_state
                where = KdaRows(conv_state, state, slots, accepted if query_len > 1 else None)
                bound.attend.local(buffers.x, where, buffers, buffers.attention)
            if bound.attend_mla is not None and self.mla_workspace is not None:
                context = rows.mla_padding(layer.self_attn, size // query_len, query_len)
                bound.attend_mla.local(buffers.x, context, self.mla_workspace, buffers, buffers.attention)
            if bound.feed_forward is not None and self.moe_buffers is not None:
                padding = torch.ones(size, dtype=torch.bool, device=buffers.x.device)
                bound.feed_forward.local(buffers.x, self.moe_buffers.head(size), padding)
        if self.last is not None:
            self.last(residual, buffers.x)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Token ids [T] → embeddings [T,D]: vLLM's own."""
        embedded: Tensor = self.backbone.embed_input_ids(input_ids)
        return embedded

    def normalize(self, output: Any) -> Any:
        """vLLM asks this only of an executor that applies the final norm itself; ours leaves it with the logits."""
        raise AssertionError("the Hopper executor does not apply the final norm")

    def plan(self, positions: Tensor, intermediate_tensors: Any) -> Step | None:
        """The step that a graph under capture is to hold, or None for vLLM's own model.

        None outside a capture, in PIECEWISE captures, for sizes that were not prepared, and for every reason of
        ``decode.plan``. All ranks decide the same: nothing here depends on the rank.
        """
        if not torch.cuda.is_current_stream_capturing():
            return None
        step = self._plan(positions, intermediate_tensors)
        record.decided(step is not None, self.slots.label)
        return step

    def _plan(self, positions: Tensor, intermediate_tensors: Any) -> Step | None:
        size, context = positions.shape[0], stock.decode_context()
        if size not in self.setup.rows or context is None:
            return None
        names = [rows.layer_name(layer.self_attn) for layer in self.layers]
        metadata = tuple(context.attn_metadata.get(name) for name in names)
        batch = rows.batch_of(metadata, size)
        decided = None if batch is None else plan(batch, self.setup.decode)
        if decided is None or decided.path is not Path.SPECIALIZED or decided.query_len != self.query_len:
            return None
        contexts = tuple(
            rows.mla_context(
                layer.self_attn, data, context.slot_mapping, size // self.query_len, self.query_len
            )
            if bound.attend_mla is not None
            else None
            for layer, bound, data in zip(self.layers, self.bound, metadata, strict=True)
        )
        ours = (bound.attend_mla is not None for bound in self.bound)
        if any(is_ours and found is None for is_ours, found in zip(ours, contexts, strict=True)):
            return None
        padding = context.is_padding
        rest = None if padding is None else padding[:size]
        return Step(metadata, contexts, positions, intermediate_tensors, rest)

    def run(self, step: Step, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Any:
        """The hidden states of a planned step, as vLLM's own ``KimiLinearModel.forward`` returns them: before the final
        norm on the last stage, with auxiliary streams where a drafter asks for them, else the next stage's input.
        """
        size = step.positions.shape[0]
        buffers = self.buffers.head(size)
        x = self._enter(step, input_ids, inputs_embeds, buffers)
        aux = stock.AuxStreams(self.backbone, step.intermediate_tensors, x)
        counts: list[int | None] = []
        layers = self._layers(step, buffers, counts)
        after = loop.run(layers, Residual(x, None, buffers.blocks), aux.after_layer if aux.wanted else None)
        counts.append(capture.count())
        if not stock.is_last_stage():
            output = aux.pack(after)
        else:
            mixed, _ = self._mix(self.last, partial(stock.mix_last, self.backbone), buffers)(after)
            output = aux.join(mixed)
        self._publish(size, counts)
        return output

    def _enter(
        self, step: Step, input_ids: Tensor | None, inputs_embeds: Tensor | None, buffers: Buffers
    ) -> Tensor:
        """The first prefix [T,D]: embeddings on the first stage, else what the stage before sent, with its blocks."""
        if stock.is_first_stage():
            if inputs_embeds is not None:
                return inputs_embeds
            assert input_ids is not None
            return self.embed_input_ids(input_ids)
        received = step.intermediate_tensors
        blocks = received["residual"]
        buffers.blocks[:, : blocks.shape[1]].copy_(blocks)
        prefix: Tensor = received["hidden_states"]
        return prefix

    def _layers(self, step: Step, buffers: Buffers, counts: list[int | None]) -> Sequence[LayerSlots]:
        return [
            self._layer(layer, bound, step, place, buffers, counts)
            for place, (layer, bound) in enumerate(zip(self.layers, self.bound, strict=True))
        ]

    def _layer(
        self, layer: Any, bound: Bound, step: Step, place: int, buffers: Buffers, counts: list[int | None]
    ) -> LayerSlots:
        attend = self._attend(layer, bound, step, place, buffers)
        mix_attention = self._mix(bound.mix_attention, partial(stock.mix_before_attention, layer), buffers)

        def counted(residual: Residual) -> tuple[Tensor, Residual]:
            counts.append(capture.count())
            return mix_attention(residual)

        return LayerSlots(
            index=layer.layer_idx,
            starts_block=layer.is_block_write_layer,
            mix_attention=counted,
            attend=attend,
            mix_feed_forward=self._mix(
                bound.mix_feed_forward, partial(stock.mix_before_feed_forward, layer), buffers
            ),
            feed_forward=self._feed_forward(layer, bound, step),
        )

    def _attend(self, layer: Any, bound: Bound, step: Step, place: int, buffers: Buffers) -> loop.Block:
        out = buffers.prefix if layer.is_block_write_layer else buffers.attention
        if bound.attend is not None:
            where = rows.kda_rows(layer.self_attn, step.metadata[place], self.query_len, self.channels_first)
            return partial(bound.attend, rows=where, buffers=buffers, out=out)
        context, workspace = step.contexts[place], self.mla_workspace
        if bound.attend_mla is not None and context is not None and workspace is not None:
            return partial(bound.attend_mla, context=context, workspace=workspace, buffers=buffers, out=out)
        return partial(stock.attend, layer, step.positions)

    def _feed_forward(self, layer: Any, bound: Bound, step: Step) -> loop.Block:
        if bound.feed_forward is None or self.moe_buffers is None:
            block: loop.Block = layer.mlp
            return block
        size = step.positions.shape[0]
        return partial(bound.feed_forward, buffers=self.moe_buffers.head(size), padding=step.padding)

    @staticmethod
    def _mix(ours: MixKernel | None, theirs: loop.Mix, buffers: Buffers) -> loop.Mix:
        return theirs if ours is None else partial(ours, out=buffers.x)

    def _publish(self, size: int, counts: list[int | None]) -> None:
        kinds = [
            f"{'KDA' if weights.is_kda(d.self_attn) else 'MLA'} + {stock.feed_forward_kind(d)}"
            for d in self.layers
        ]
        per_layer = capture.per_layer(counts, kinds)
        self.kernels[size] = per_layer | ({"step": counts[-1]} if counts[-1] is not None else {})
        record.kernels(per_layer)
