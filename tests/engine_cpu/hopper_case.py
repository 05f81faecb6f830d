"""Child process: what the Hopper executor does with vLLM's own classes. Prints one line: RESULT and a JSON object."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from tests.engine_cpu.hopper_build import (
    CONFIG,
    HEADS,
    HIDDEN,
    FakeKda,
    FakeMix,
    bind_caches,
    build,
    capturing,
    engine_config,
    metadata_for,
    mixture,
    prepare,
    ready,
    stage,
)
from tests.engine_cpu.hopper_latent import latent


def plugin_registers() -> dict[str, Any]:
    """What the registry holds after the plugin ran, and the class that vLLM resolves."""
    from vllm import ModelRegistry

    from runtime import plugin

    plugin.register()
    plugin.register()
    text, whole = (
        ModelRegistry.models[name] for name in ("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration")
    )
    return {
        "text": f"{text.module_name}:{text.class_name}",
        "multimodal": whole.module_name.partition(".")[0],
        "resolved": text.load_model_cls().__name__,
    }


REFUSALS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "eager": {"enforce_eager": True},
    "piecewise": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "full for any mixture": {"compilation_config": {"cudagraph_mode": "FULL"}},
    "decode graphs only": {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}},
    "half": {"dtype": "float16"},
    "bf16 states": {"mamba_ssm_cache_dtype": "bfloat16"},
    "sleep": {"enable_sleep_mode": True},
    "both switches": {"extra": {"decode_backend": "latency_specialized"}},
    "head 64": {"model": {"linear_attn_config": {**CONFIG["linear_attn_config"], "head_dim": 64}}},
    "taps 3": {
        "model": {"linear_attn_config": {**CONFIG["linear_attn_config"], "short_conv_kernel_size": 3}}
    },
    "no bound": {"model": {"linear_attn_config": {**CONFIG["linear_attn_config"], "gate_lower_bound": None}}},
    "hidden 640": {"model": {"hidden_size": 640}},
    "nine blocks": {"model": {"num_hidden_layers": 9, "attn_res_block_size": 1}},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "eight drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 8}},
    "several": {"enforce_eager": True, "enable_sleep_mode": True, "dtype": "float16"},
}


def refusals() -> dict[str, Any]:
    """Every reason that ``unsupported`` gives, by configuration."""
    from runtime.engine.hopper import setup

    found: dict[str, Any] = {}
    for name, arguments in REFUSALS.items():
        try:
            found[name] = setup.unsupported(engine_config(**arguments))
        except Exception as error:  # vLLM itself refuses
            found[name] = f"vLLM: {str(error).splitlines()[0][:200]}"
    config = engine_config()
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    before = type(current_platform).get_device_capability
    type(current_platform).get_device_capability = classmethod(
        lambda cls, device_id=0: DeviceCapability(10, 3)
    )
    found["blackwell"] = setup.unsupported(config)
    type(current_platform).get_device_capability = before
    setup.KNOWN_VLLM, known = frozenset({"0.99.0"}), setup.KNOWN_VLLM
    found["another vllm"] = setup.unsupported(config)
    setup.KNOWN_VLLM = known
    setup.missing_packages, real = lambda *names: tuple(f"no {n}" for n in names), setup.missing_packages
    found["no compiler"] = setup.unsupported(config)
    setup.missing_packages = real
    return found


def switches() -> dict[str, Any]:
    """What each value of the switch does, on a configuration that can be served and on one that cannot."""
    from runtime.engine.hopper.setup import hopper_setup

    found: dict[str, Any] = {}
    for name, extra, arguments in (
        ("absent", {}, {}),
        ("stock", {"k3_decode": "stock"}, {"enforce_eager": True}),
        ("hopper", {"k3_decode": "hopper"}, {}),
        ("auto", {"k3_decode": "auto"}, {}),
        ("auto, refused", {"k3_decode": "auto"}, {"enforce_eager": True}),
        ("hopper, refused", {"k3_decode": "hopper"}, {"enforce_eager": True, "dtype": "float16"}),
        ("unknown", {"k3_decode": "Hopper"}, {}),
        ("unknown slot", {"k3_decode": "hopper", "k3_slots": "kda"}, {}),
        ("slots", {"k3_decode": "hopper", "k3_slots": "attend@1-2,mix"}, {}),
        (
            "drafts",
            {"k3_decode": "hopper"},
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        ),
    ):
        try:
            setup = hopper_setup(engine_config(extra=extra, **arguments))
            found[name] = {
                "wanted": setup.wanted, "slots": setup.slots.label, "rows": setup.rows, "refused": setup.refused,
                "query_len": setup.query_len,
            }  # fmt: skip
        except ValueError as error:
            found[name] = str(error)
    return found


def stock_ops() -> None:
    """vLLM's modules that have no kernel here, in PyTorch."""
    from vllm.models.kimi_k3.nvidia import model

    model.attn_res = mixture


def embedding(model: Any) -> None:
    """vLLM's embedding asks for a kernel; a plain gather is the same."""
    import torch

    table = getattr(model.model.embed_tokens, "weight", None)
    if table is not None:
        model.model.embed_tokens.forward = lambda ids: torch.nn.functional.embedding(ids, table)


def our_executor(model: Any) -> Any:
    """The executor that vLLM's model state builds, with our kernels in PyTorch."""
    from runtime.engine.hopper import executor

    executor.MixKernel, executor.KdaBlock = FakeMix, FakeKda
    model.build_specialized_decode()
    return model.specialized_decode


def equal(a: Any, b: Any) -> bool:
    """Whether outputs of a stage are equal, bit by bit: a tensor, streams beside it, or what is sent on."""
    import torch

    if isinstance(a, tuple):
        return equal(a[0], b[0]) and len(a[1]) == len(b[1]) and all(map(torch.equal, a[1], b[1]))
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    return a.tensors.keys() == b.tensors.keys() and all(torch.equal(a[k], b[k]) for k in a.tensors)


def loops() -> dict[str, Any]:
    """Our loop with vLLM's slots, and with our mixtures, against vLLM's own forward: one stage, two, with streams."""
    import torch
    from vllm.config import set_current_vllm_config

    from runtime.model.step import SlotChoice

    found: dict[str, Any] = {}
    stock_ops()
    config = engine_config(extra={"k3_decode": "hopper"})
    for stages, aux in ((1, ()), (1, (0, 2, 6)), (2, ()), (2, (2, 5))):
        received = None
        for rank in range(stages):
            model = build(config, rank, stages)
            embedding(model)
            with set_current_vllm_config(config), stage(rank, stages), torch.inference_mode():
                model.model._set_aux_hidden_state_layers(aux)
                decode = our_executor(model)
                bind_caches(model, 17)
                ids, positions = torch.arange(8) * 7 % 256, torch.arange(8) + 3

                def given(received: Any = received) -> Any:
                    return (
                        None
                        if received is None
                        else type(received)({k: v.clone() for k, v in received.tensors.items()})
                    )

                model.specialized_decode = None
                theirs = model.forward(ids, positions, given())
                model.specialized_decode = decode
                for slots in ("none", "mix", "mix@0-2", "mix@4"):
                    decode.choose(SlotChoice.parse(slots))
                    FakeMix.calls.clear()
                    with capturing(model, metadata_for(model, 8)):
                        ours = model.forward(ids, positions, given())
                    name = f"{stages} stages, rank {rank}, aux {aux}, {slots}"
                    found[name] = [equal(ours, theirs), len(FakeMix.calls)]
                received = theirs
    return found


def plans() -> dict[str, Any]:
    """What ``plan`` answers by the situation it is asked in, and what the witness is told."""
    import torch
    from vllm.config import set_current_vllm_config

    from runtime.engine.hopper import record

    stock_ops()
    told: list[Any] = []
    record.witness = SimpleNamespace(
        decide=lambda content: told.append([content.specialized, content.slots]),
        Content=lambda specialized, slots: SimpleNamespace(specialized=specialized, slots=slots),
        kernels=lambda per_layer: None,
        current=lambda: None,
    )
    found: dict[str, Any] = {}
    config = engine_config(extra={"k3_decode": "hopper"})
    model = build(config)
    with set_current_vllm_config(config), stage():
        decode = our_executor(model)

        def ask(name: str, rows: int, metadata: Any, mode: str = "NONE") -> None:
            told.clear()
            with capturing(model, metadata, mode):
                step = decode.plan(torch.arange(rows), None)
            found[name] = [step is not None, list(told)]

        good = metadata_for(model, 8)
        ask("decode", 8, good)
        ask("piecewise", 8, good, "PIECEWISE")
        ask("size not captured", 5, metadata_for(model, 5))
        ask("over the limit", 72, metadata_for(model, 72))
        ask("prefill", 8, metadata_for(model, 8, num_prefills=1))
        ask("fewer state rows", 8, metadata_for(model, 4))
        ask("no metadata", 8, {})
        one_missing = dict(good)
        one_missing.pop(next(iter(one_missing)))
        ask("a layer without metadata", 8, one_missing)
        ask("verify rows without speculation", 8, metadata_for(model, 4, 2))
        told.clear()
        found["not capturing"] = [decode.plan(torch.arange(8), None) is not None, list(told)]
    verify = engine_config(
        extra={"k3_decode": "hopper"}, speculative_config={"method": "ngram", "num_speculative_tokens": 3}
    )
    model = build(verify)
    with set_current_vllm_config(verify), stage():
        decode = our_executor(model)
        ask("verify", 8, metadata_for(model, 2, 4))
        ask("verify padded", 8, metadata_for(model, 2, 4, num_spec_decodes=1, num_spec_decode_tokens=4))
        ask("verify of other lengths", 8, metadata_for(model, 2, 4, num_spec_decode_tokens=7))
        ask("verify and decode", 8, metadata_for(model, 2, 4, num_decodes=1))
        ask("decode in a verify engine", 8, metadata_for(model, 8))
    return found


def binding() -> dict[str, Any]:
    """Weights that vLLM loaded from checkpoint names, read in place by our block, against the layer that loads them
    by itself; and the group's sum after it.
    """
    import torch
    from vllm.config import set_current_vllm_config

    from runtime.engine.hopper import rows, weights
    from runtime.model.config import K3Config
    from runtime.model.layers import KdaLayer
    from runtime.model.mixing import kda_uniform
    from runtime.model.sharding import Shard
    from runtime.model.step import SlotChoice
    from runtime.model.weights import load_module, seeded_weights

    stock_ops()
    config = engine_config(extra={"k3_decode": "hopper"})
    model = build(config)
    own = K3Config.from_hf(CONFIG)
    layer_names = "model.layers.1.self_attn."
    checkpoint = [
        (name.removeprefix("language_model."), tensor.bfloat16() if tensor.dim() > 1 else tensor)
        for name, tensor in seeded_weights(own)
        if layer_names in name
    ]
    model.load_weights(checkpoint)
    reference = KdaLayer(own, Shard())
    holder = torch.nn.Module()
    holder.self_attn = reference
    load_module(
        holder, [(name.removeprefix("model.layers.1."), tensor.float()) for name, tensor in checkpoint]
    )
    found: dict[str, Any] = {}
    with set_current_vllm_config(config), stage(), torch.inference_mode():
        decode = our_executor(model)
        decode.choose(SlotChoice.parse("attend"))
        bind_caches(model, 17)
        attention = model.model.layers[1].self_attn
        x = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
        metadata = metadata_for(model, 4)[attention.prefix]
        windows, states = (t.clone() for t in attention.kv_cache)
        where = rows.kda_rows(attention, metadata, 1, False)
        buffers = decode.buffers.head(4)
        ours = decode.bound[1].attend(x, where, buffers, buffers.attention)
        inputs = reference.project(x.float())
        slots = metadata.non_spec_state_indices_tensor.long()
        o, _, state = kda_uniform(reference, inputs, windows[slots].float(), states[slots])
        theirs = reference.output(o, inputs.gate)
        found["error"] = float((ours.float() - theirs).norm() / theirs.norm())
        found["state_error"] = float((attention.kv_cache[1][slots] - state[:, 0]).norm() / state.norm())
        found["others_untouched"] = bool(torch.equal(attention.kv_cache[1][5:], states[5:]))
        views = weights.kda_weights(attention)
        found["in_place"] = [
            views.in_proj.data_ptr() == attention.in_proj_qkvgfab.weight.data_ptr(),
            views.conv.data_ptr() == attention.conv1d.weight.data_ptr(),
            views.o_proj.data_ptr() == attention.o_proj.weight.data_ptr(),
        ]
    with set_current_vllm_config(config), stage(tp=2), torch.inference_mode():
        found["summed_over_the_group"] = _summed(decode, (x, where, buffers), (windows, states), ours.clone())
    return found


def _summed(decode: Any, given: Any, states: Any, alone: Any) -> bool:
    """Whether a rank's block, bound in a group, ends with vLLM's sum over it."""
    import torch
    import vllm.distributed

    from runtime.model.step import SlotChoice

    x, where, buffers = given
    before = vllm.distributed.tensor_model_parallel_all_reduce
    vllm.distributed.tensor_model_parallel_all_reduce = lambda t: t * 2
    decode.choose(SlotChoice.parse("attend"))
    where.conv_state.copy_(states[0])
    where.state.copy_(states[1])
    twice = decode.bound[1].attend(x, where, buffers, buffers.attention)
    vllm.distributed.tensor_model_parallel_all_reduce = before
    return bool(torch.equal(twice, alone * 2))


def addressing() -> dict[str, Any]:
    """Where verify rows and channel-first windows are found."""
    import torch

    from runtime.engine.hopper import rows

    config = engine_config(
        extra={"k3_decode": "hopper"}, speculative_config={"method": "ngram", "num_speculative_tokens": 3}
    )
    model = build(config)
    attention = model.model.layers[0].self_attn
    conv = torch.zeros(9, 3 * HEADS * 128, 6)
    attention.kv_cache = (conv, torch.zeros(9, HEADS, 128, 128))
    metadata = metadata_for(model, 2, 4)[attention.prefix]
    where = rows.kda_rows(attention, metadata, 4, True)
    return {
        "windows": [list(where.conv_state.shape), where.conv_state.data_ptr() == conv.data_ptr()],
        "slots": where.slots.tolist(),
        "slots_in_place": where.slots.data_ptr() == metadata.spec_state_indices_tensor.data_ptr(),
        "accepted_in_place": where.accepted.data_ptr() == metadata.num_accepted_tokens.data_ptr(),
    }


def launch_lists() -> dict[str, Any]:
    """The launches of whole steps, by stage, group and slots."""
    import torch
    from vllm.config import set_current_vllm_config

    from runtime.model import step

    stock_ops()
    found: dict[str, Any] = {}
    config = engine_config(extra={"k3_decode": "hopper"})
    for rank, stages, tp in ((0, 1, 1), (0, 2, 1), (1, 2, 1), (0, 1, 2)):
        model = build(config, rank, stages)
        with set_current_vllm_config(config), stage(rank, stages, tp), torch.inference_mode():
            decode = our_executor(model)
            for slots in ("none", "mix,attend"):
                decode.choose(step.SlotChoice.parse(slots))
                launches = decode.launches()
                found[f"rank {rank} of {stages}, tp {tp}, {slots}"] = [
                    [x.op, x.layer, p.settled, p.early_trigger]
                    for x, p in zip(launches, step.overlaps(launches), strict=True)
                ]
            bound = [b.mix_attention.overlap for b in decode.bound]
            found[f"bound {rank}/{stages}/{tp}"] = [
                [b.settled, b.early_trigger] for b in bound
            ] == [[p.settled, p.early_trigger] for x, p in zip(launches, step.overlaps(launches), strict=True)
                  if x.op == "attn_res"][: 2 * len(bound) : 2]  # fmt: skip
    return found


def fallbacks() -> dict[str, Any]:
    """A kernel that would run its fallback, and weights of another layout: refused, or stock with the reasons."""
    import torch
    from vllm.config import set_current_vllm_config

    from runtime.engine.hopper import executor, record

    stock_ops()
    refused: list[Any] = []
    record.refused, kept = refused.append, record.refused
    found: dict[str, Any] = {}

    class Slow(FakeMix):
        choice = SimpleNamespace(
            op="attn_res", variant="triton", reason="cute: never run on NVIDIA H100", fallback=True
        )

    for asked in ("hopper", "auto"):
        config = engine_config(extra={"k3_decode": asked})
        for name in ("fallback", "dtype"):
            model = build(config)
            executor.MixKernel, executor.KdaBlock = (Slow if name == "fallback" else FakeMix), FakeKda
            if name == "dtype":
                for layer in model.model.layers:
                    if hasattr(layer.self_attn, "o_proj") and hasattr(layer.self_attn, "in_proj_qkvgfab"):
                        layer.self_attn.o_proj.weight = torch.nn.Parameter(
                            layer.self_attn.o_proj.weight.data.float(), requires_grad=False
                        )
            refused.clear()
            with set_current_vllm_config(config), stage():
                try:
                    model.build_specialized_decode()
                    found[f"{asked} {name}"] = [
                        model.specialized_decode is None,
                        refused[0] if refused else None,
                    ]
                except ValueError as error:
                    found[f"{asked} {name}"] = str(error)
    record.refused = kept
    return found


def pipeline_stream() -> dict[str, Any]:
    """The stream that vLLM's ``PPHandler`` waits for when nobody has asked for vLLM's own stream before."""
    import torch
    import vllm.utils.torch_utils as streams
    from vllm.v1.worker.gpu import pp_utils

    from runtime.engine import upstream_fixes

    state = {"current": "the default stream"}

    def own_stream() -> str:
        state["current"] = "vLLM's stream"
        return state["current"]

    before = torch.cuda.current_stream, streams.current_stream, pp_utils.get_pp_group
    torch.cuda.current_stream = lambda device=None: state["current"]
    streams.current_stream = own_stream
    pp_utils.get_pp_group = lambda: MagicMock(world_size=2, is_last_rank=False)
    original = getattr(pp_utils.PPHandler.__init__, "__wrapped__", pp_utils.PPHandler.__init__)
    pp_utils.PPHandler.__init__ = original
    unfixed = pp_utils.PPHandler(4, 0, "cpu").main_stream
    state["current"] = "the default stream"
    upstream_fixes.fix_pipeline_stream()
    upstream_fixes.fix_pipeline_stream()
    fixed = pp_utils.PPHandler(4, 0, "cpu").main_stream
    torch.cuda.current_stream, streams.current_stream, pp_utils.get_pp_group = before
    return {"unfixed": unfixed, "fixed": fixed}


CASES = (
    plugin_registers, refusals, switches, loops, plans, binding, addressing, launch_lists, fallbacks, pipeline_stream,
    latent,
)  # fmt: skip


def main() -> None:
    """Run every case; one that fails says why, so that the others are seen too."""
    import traceback

    prepare()
    ready()
    result: dict[str, Any] = {}
    for case in CASES:
        try:
            result[case.__name__] = case()
        except Exception:
            result[case.__name__] = {"failed": traceback.format_exc()}
    sys.stdout.write("RESULT" + json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
