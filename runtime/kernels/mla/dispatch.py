"""Bind MLA decode to a call site: choose an implementation of its core once, then call it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import check_tensor, require
from runtime.kernels.common.launch.device import Device, device_of, multiprocessors, supports_pdl
from runtime.kernels.common.launch.dispatch import AUTO, Choice, cute_or_triton, record, table_of
from runtime.kernels.mla.shapes import HEAD, LATENT, ROW, VALUE, Split, split
from runtime.kernels.mla.spec import Context, MlaDecodeSpec, check, check_context, check_weights, unsupported
from runtime.kernels.mla.table import MEASURED_ON, TABLES, Launch, launch_of

CTAS_WITHOUT_GPU = 132


@dataclass(frozen=True)
class Workspace:
    """What a call writes besides its result; layers of one stream may share it.

    q: [T, N, 192] and query: [T, N, 576] BF16. o: [places, rows, 512] and lse: [places, rows] FP32, the parts of a
    core (`shapes`). zeros: [576] BF16, what rows that are not there are read from; it stays as it is.
    """

    q: Tensor
    query: Tensor
    o: Tensor
    lse: Tensor
    zeros: Tensor


def choose_mla_decode(spec: MlaDecodeSpec, device: Device, requested: str = AUTO) -> Choice:
    """Choose among "cute" (the tensor-core stream) and "triton" (the fallback) for the attention core."""
    return cute_or_triton("mla_decode", unsupported(spec, device.arch), device, MEASURED_ON, requested)


class MlaDecode:
    """One layer's attention between its projections, on one rank: four launches a call.

    The weights are views of the engine's (`spec.check_weights`). provider: "auto", "cute" or "triton", of the core; the
    sides are Triton. Raises ValueError if the weights do not fit `spec` or an explicit provider cannot run.
    """

    def __init__(
        self,
        spec: MlaDecodeSpec,
        q_norm: Tensor,
        w_qb: Tensor,
        kv_norm: Tensor,
        w_uk: Tensor,
        w_uv: Tensor,
        *,
        provider: str = AUTO,
    ) -> None:
        check_weights(spec, q_norm, w_qb, kv_norm, w_uk, w_uv)
        self.spec = spec
        self.q_norm, self.w_qb, self.kv_norm, self.w_uk, self.w_uv = q_norm, w_qb, kv_norm, w_uk, w_uv
        self._device = device_of(w_qb.device)
        self.choice = choose_mla_decode(spec, self._device, provider)
        self._pdl = supports_pdl(self._device.arch)

    def launch(self, tokens: int) -> Launch:
        """How the core is launched for a number of token rows."""
        return launch_of(table_of(TABLES, self._device), tokens)

    def split(self, launch: Launch) -> Split:
        """How a step is split with a launch."""
        index = self.w_qb.device.index
        ctas = multiprocessors(index) if index is not None else CTAS_WITHOUT_GPU
        return split(self.spec.heads, self.spec.tokens, launch.span, ctas)

    def prepare(self, max_requests: int) -> None:
        """Compile every CuTe launch that calls with 1 … `max_requests` requests make, before a capture.

        Triton compiles at the first call; a call on a padding step does that.
        """
        if self.choice.variant != "cute":
            return
        from runtime.kernels.mla import cute_launch

        for launch in {self.launch(self.spec.tokens * n) for n in range(1, max_requests + 1)}:
            cute_launch.compiled(self.spec, self.split(launch), launch.stages, self._device.arch)

    def buffers(self, max_requests: int) -> Workspace:
        """Buffers for at most `max_requests` requests, to be given to every call."""
        spec, device, tokens = self.spec, self.w_qb.device, max_requests * self.spec.tokens
        whole = self.split(launch_of(table_of(TABLES, self._device), tokens))
        places = whole.places(max_requests)

        def bf16(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.bfloat16, device=device)

        return Workspace(
            bf16(tokens, spec.heads, HEAD),
            bf16(tokens, spec.heads, ROW),
            torch.zeros(places, whole.rows, LATENT, device=device),
            torch.zeros(places, whole.rows, device=device),
            bf16(ROW),
        )

    def __call__(
        self,
        q_a: Tensor,
        kv_a: Tensor,
        gate: Tensor,
        context: Context,
        workspace: Workspace,
        out: Tensor,
        *,
        launch: Launch | None = None,
    ) -> Tensor:
        """Write the gated values to `out` [T, N 128] and return it; store this step's rows in the pages.

        Shapes in `spec.check`, meaning in `composed`. launch: another than the table's, for benches.
        """
        check(self.spec, q_a, kv_a, gate, context, out)
        require(
            self.spec.ranks == 1,
            "ranks",
            "1: shards need `attend`, an exchange and `finish`",
            self.spec.ranks,
        )
        record(self.choice)
        if out.shape[0] == 0:
            return out
        launch = launch or self.launch(out.shape[0])
        self._way(
            launch, context, workspace
        )  # a workspace that is too small is refused before the first launch
        way = self.core(self.query(q_a, workspace), kv_a, context, workspace, launch)
        parts = (workspace.o, workspace.lse, context.lengths)
        self._sides.run_value(self.spec, way, *parts, self.w_uv, gate, out, pdl=self._pdl)
        return out

    def query(self, q_a: Tensor, workspace: Workspace) -> Tensor:
        """The first two launches: the absorbed query [T, N, 576] of q_a [T, R], in the workspace."""
        q, query = workspace.q[: q_a.shape[0]], workspace.query[: q_a.shape[0]]
        self._sides.run_query(self.spec, q_a, self.q_norm, self.w_qb, q, pdl=self._pdl)
        self._sides.run_absorb(q, self.w_uk, query, pdl=self._pdl)
        return query

    def core(
        self,
        query: Tensor,
        kv_a: Tensor,
        context: Context,
        workspace: Workspace,
        launch: Launch | None = None,
    ) -> Split:
        """The third launch: parts in the workspace, new rows in the pages; returns where the parts are."""
        launch = launch or self.launch(query.shape[0])
        way = self._way(launch, context, workspace)
        site = (query, kv_a, self.kv_norm, context.cache, context.block_table, context.lengths, context.slots)
        parts = (workspace.o, workspace.lse)
        if self.choice.variant == "cute":
            from runtime.kernels.mla import cute_launch

            cute_launch.run(self.spec, way, *site, *parts, workspace.zeros, stages=launch.stages)
        else:
            from runtime.kernels.mla import triton_core

            triton_core.run(self.spec, way, *site, *parts, pdl=self._pdl)
        return way

    def attend(
        self,
        query: Tensor,
        kv_a: Tensor,
        context: Context,
        workspace: Workspace,
        o: Tensor,
        lse: Tensor,
        *,
        launch: Launch | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The (o, LSE) form over this rank's shard: o [T, N, 512], lse [T, N] FP32, written and returned.

        query: [T, N, 576] BF16, absorbed, of all the heads that attend here. kv_a: [T, 576].
        """
        rows, spec = check_context(self.spec, context), self.spec
        rest = {"device": context.cache.device, "contiguous_from": 0}
        check_tensor("query", query, shape=(rows, spec.heads, ROW), dtype=torch.bfloat16, **rest)
        check_tensor("kv_a", kv_a, shape=(rows, ROW), dtype=torch.bfloat16, row_multiple=8)
        check_tensor("o", o, shape=(rows, spec.heads, LATENT), dtype=torch.float32, **rest)
        check_tensor("lse", lse, shape=(rows, spec.heads), dtype=torch.float32, **rest)
        record(self.choice)
        if rows:
            way = self.core(query, kv_a, context, workspace, launch)
            parts = (workspace.o, workspace.lse, context.lengths)
            self._sides.run_merge(spec, way, *parts, o, lse, pdl=self._pdl)
        return o, lse

    def finish(self, o: Tensor, lse: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        """Merge o [P, T, N, 512] and lse [P, T, N] FP32 of P shards, project and gate, in one launch, to `out`."""
        rows, heads, rest = out.shape[0], self.spec.heads, {"device": out.device}
        check_tensor("out", out, shape=(rows, heads * VALUE), dtype=torch.bfloat16, row_multiple=8, **rest)
        check_tensor("gate", gate, shape=(rows, heads * VALUE), dtype=torch.bfloat16, row_multiple=8, **rest)
        check_tensor(
            "o", o, shape=(None, rows, heads, LATENT), dtype=torch.float32, contiguous_from=0, **rest
        )
        check_tensor("lse", lse, shape=o.shape[:3], dtype=torch.float32, contiguous_from=0, **rest)
        require(o.shape[0] > 0, "o", "of at least one shard", o.shape[0])
        if rows:
            way, none = self.split(self.launch(rows)), torch.empty(1, dtype=torch.int32, device=out.device)
            sites = (self.spec, way, o, lse, none, self.w_uv, gate, out)
            self._sides.run_value(*sites, shards=o.shape[0], pdl=self._pdl)
        return out

    @property
    def _sides(self) -> Any:
        from runtime.kernels.mla import triton_sides

        return triton_sides

    def _way(self, launch: Launch, context: Context, workspace: Workspace) -> Split:
        """How the step is split; ValueError unless the workspace holds its parts."""
        way = self.split(launch)
        needed = way.places(context.lengths.shape[0])
        places = workspace.o.shape[0] if workspace.o.shape[1] == way.rows else 0
        require(places >= needed, "workspace", f"of {needed} places for {way.rows} rows", places)
        return way
