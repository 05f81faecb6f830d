"""The slot of MLA layers on vLLM's own classes (a case of ``hopper_case``): weights, pages, promises, refusals.

Our three launch modules are replaced by the operator's definition in PyTorch; binding, checks, planning, the loop and
vLLM's metadata are the real ones.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.engine_cpu.hopper_build import (
    CONFIG,
    HEADS,
    HIDDEN,
    FakeKda,
    FakeMix,
    build,
    capturing,
    engine_config,
    metadata_for,
    stage,
)

BLOCK, PAGES, LAYER = 16, 20, 3


def definition() -> None:
    """Stand-ins for the launch modules, which leave the whole context in the first place of a pair."""
    import torch

    from runtime.kernels.mla.composed import mla_core, mla_query, mla_value
    from runtime.model.providers import mla as provider

    given: dict[str, Any] = {}

    def run_query(spec: Any, x: Any, norm: Any, w_qb: Any, q: Any, *, pdl: bool) -> None:
        given["query"] = (x, norm, w_qb)

    def run_absorb(q: Any, w_uk: Any, query: Any, *, pdl: bool) -> None:
        query.copy_(mla_query(*given["query"], w_uk, 1e-5))

    def run(spec: Any, way: Any, query: Any, kv_a: Any, norm: Any, cache: Any, *rest: Any, **_: Any) -> None:
        tables = rest[:3]
        given["parts"] = mla_core(query, kv_a, norm, cache, *tables, eps=spec.eps, scale=spec.scale)

    def run_value(
        spec: Any, way: Any, o: Any, lse: Any, lengths: Any, w_uv: Any, gate: Any, out: Any, **_: Any
    ) -> None:
        o, lse = given["parts"]
        out.copy_(mla_value(o[None], lse[None], w_uv, gate))

    for name, members in (
        ("triton_sides", {"run_query": run_query, "run_absorb": run_absorb, "run_value": run_value}),
        ("cute_launch", {"run": run}),
    ):
        module = ModuleType(name)
        module.__dict__.update(members)
        sys.modules[f"runtime.kernels.mla.{name}"] = module
        setattr(sys.modules["runtime.kernels.mla"], name, module)

    class Linear:
        """A projection by PyTorch."""

        def __init__(self, spec: Any, weight: Any) -> None:
            self.spec, self.weight = spec, weight

        def __call__(self, x: Any, out: Any) -> Any:
            return out.copy_(torch.nn.functional.linear(x, self.weight))

    provider.SkinnyGemm = Linear
    from runtime.kernels.mla import dispatch

    dispatch.choose_mla_decode = lambda spec, device, requested: SimpleNamespace(
        op="mla_decode", variant=requested, reason="requested", fallback=requested != "cute"
    )
    dispatch.record = lambda choice: None


def bind_pages(model: Any) -> None:
    """Latent pages of every MLA layer; page 0 is vLLM's null page."""
    import torch

    for layer in model.model.layers:
        if hasattr(layer.self_attn, "kv_b_proj"):
            generator = torch.Generator().manual_seed(layer.layer_idx)
            layer.self_attn.bind_kv_cache(torch.randn(PAGES, 1, BLOCK, 576, generator=generator).bfloat16())


def with_pages(model: Any, lengths: list[int], query_len: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """vLLM's metadata and slot mappings of a step; requests have neighbouring pages, those of length 0 none."""
    import torch
    from vllm.model_executor.layers.attention.mla_attention import MLACommonDecodeMetadata

    metadata = metadata_for(model, len(lengths), query_len)
    table, slots, page = torch.full((len(lengths), 4), -1, dtype=torch.int32), [], 1
    for b, n in enumerate(lengths):
        used = -(-n // BLOCK)
        table[b, :used] = torch.arange(page, page + used)
        slots += [page * BLOCK + n - query_len + t if n else -1 for t in range(query_len)]
        page += used
    found = {}
    for layer in model.model.layers:
        if hasattr(layer.self_attn, "kv_b_proj"):
            name = layer.self_attn.layer_name
            seq_lens = torch.tensor(lengths, dtype=torch.int32)
            metadata[name].decode = MLACommonDecodeMetadata(table, seq_lens, None)
            found[name] = torch.tensor(slots)
    return metadata, found


def latent() -> dict[str, Any]:
    """Everything about the slot, by what is asked."""
    import torch
    from vllm.config import set_current_vllm_config

    from runtime.engine.hopper import executor, rows, weights

    definition()
    executor.MixKernel, executor.KdaBlock = FakeMix, FakeKda
    found: dict[str, Any] = {}
    config = engine_config(extra={"k3_decode": "hopper", "k3_slots": "attend_mla"})
    model = build(config)
    reference = loaded(model)
    attention = model.model.layers[LAYER].self_attn
    with set_current_vllm_config(config), stage(), torch.inference_mode():
        model.build_specialized_decode()
        decode = model.specialized_decode
        found["bound"] = [bound.attend_mla is not None for bound in decode.bound]
        views = weights.mla_weights(attention)
        found["in_place"] = [
            views.in_proj.data_ptr() == attention.fused_qkv_a_g_proj.weight.data_ptr(),
            views.w_uk.data_ptr() == attention.kv_b_proj.weight.data_ptr(),
            views.w_qb.data_ptr() == attention.q_b_proj.weight.data_ptr(),
        ]
        bind_pages(model)
        before = attention.kv_cache.clone()
        decode.prepare_kv()
        found["padding_writes_nothing"] = bool(torch.equal(before, attention.kv_cache))
        found["errors"] = [
            error(decode, model, reference, lengths, query_len)
            for lengths, query_len in (([1, 30, 0, 17], 1), ([9, 16, 0, 33], 1))
        ]
        found["planned"] = planned(decode, model)
        found["launches"] = [
            [x.op, p.settled, p.early_trigger]
            for x, p in zip(decode.launches(), executor.loop.overlaps(decode.launches()), strict=True)
            if x.layer == LAYER
        ]
        found["promise"] = [decode.bound[LAYER].attend_mla.core.spec.overlap.settled]
    found["refused"] = refused(weights, attention)
    found["padding"] = rows.mla_padding(attention, 2, 3).slots.tolist()
    return found


def loaded(model: Any) -> Any:
    """The layer in PyTorch that loads the checkpoint names which vLLM has loaded too."""
    import torch

    from runtime.model.config import K3Config
    from runtime.model.layers import MlaLayer
    from runtime.model.sharding import Shard
    from runtime.model.weights import load_module, seeded_weights

    own, prefix = K3Config.from_hf(CONFIG), f"model.layers.{LAYER}."
    checkpoint = [
        (name.removeprefix("language_model."), tensor.bfloat16())
        for name, tensor in seeded_weights(own)
        if f"{prefix}self_attn." in name
    ]
    model.load_weights(checkpoint)
    holder = torch.nn.Module()
    holder.self_attn = MlaLayer(own, Shard())
    load_module(holder, [(name.removeprefix(prefix), tensor.float()) for name, tensor in checkpoint])
    return holder.self_attn


def error(decode: Any, model: Any, reference: Any, lengths: list[int], query_len: int) -> float:
    """Relative error of our block against the reference layer on the same cache, in FP32."""
    import torch

    from runtime.engine.hopper import rows

    attention = model.model.layers[LAYER].self_attn
    metadata, slots = with_pages(model, lengths, query_len)
    context = rows.mla_context(attention, metadata[attention.layer_name], slots, len(lengths), query_len)
    x = torch.randn(len(lengths) * query_len, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
    buffers, inputs = decode.buffers.head(len(x)), reference.project(x.float())
    old = attention.kv_cache.clone()
    ours = decode.bound[LAYER].attend_mla(x, context, decode.mla_workspace, buffers, buffers.attention)
    from runtime.model.mixing import mla_sequence

    expected = torch.zeros(len(x), HEADS * 128)
    for b, n in enumerate(lengths):
        mine = slice(b * query_len, (b + 1) * query_len)
        pages = context.block_table[b][: -(-n // BLOCK)].long()
        held = old[pages].flatten(0, 1)[: max(0, n - query_len)].float()
        cache = torch.cat([held, inputs.latent[mine]])
        if n:
            positions = torch.arange(n - query_len, n)
            expected[mine] = mla_sequence(reference, inputs.q[mine], cache, positions).flatten(1)
            stored = attention.kv_cache.flatten(0, 1)[context.slots[mine]].float()
            assert (stored - inputs.latent[mine]).norm() < 0.01 * inputs.latent[mine].norm()
    theirs = reference.output(expected.unflatten(1, (HEADS, 128)), inputs.gate)
    assert ours.isfinite().all()
    return float((ours.float() - theirs).norm() / theirs.norm())


def planned(decode: Any, model: Any) -> dict[str, bool]:
    """Which situations give a step, and whether the captured forward runs our core where it should."""
    import torch

    good, slots = with_pages(model, [5, 9, 0, 20] * 2, 1)
    name = model.model.layers[LAYER].self_attn.layer_name
    few, _ = with_pages(model, [5, 9, 0, 20] * 2, 1)
    few[name].decode.block_table = few[name].decode.block_table[:7]
    none, _ = with_pages(model, [5, 9, 0, 20] * 2, 1)
    none[name].decode = None
    found = {}
    for case, metadata, mapping in (
        ("decode", good, slots),
        ("a table of fewer requests", few, slots),
        ("no decode metadata", none, slots),
        ("no slots", good, {}),
        ("slots of one layer missing", good, {k: v for k, v in slots.items() if k != name}),
    ):
        with capturing(model, metadata, slots=mapping):
            found[case] = decode.plan(torch.arange(8), None) is not None
    return found


def refused(weights: Any, attention: Any) -> dict[str, str]:
    """What is said of attention that our kernels do not compute; each change is taken back."""
    import torch

    found = {}
    for name, attribute, value in (
        ("rotary", "rotary_emb", object()),
        ("no gate", "use_output_gate", False),
        ("fp8", "kv_cache_dtype", "fp8"),
        ("shards", "dcp_world_size", 8),
        ("non-causal", "non_causal_multi_token_decode", True),
        ("sizes", "v_head_dim", 64),
    ):
        before = attention.__dict__[attribute]
        attention.__dict__[attribute] = value
        try:
            weights.mla_weights(attention)
            found[name] = ""
        except ValueError as reason:
            found[name] = str(reason)
        attention.__dict__[attribute] = before
    kept = attention.kv_b_proj.weight
    attention.kv_b_proj.weight = torch.nn.Parameter(kept.data.float(), requires_grad=False)
    found["readable"] = str(weights.readable_mla(attention))
    try:
        weights.mla_weights(attention)
    except ValueError as reason:
        found["dtype"] = str(reason)
    attention.kv_b_proj.weight = kept
    return found
