"""One layer at a time against the formulas in FP64: inputs and states are recorded in eager vLLM steps."""

from __future__ import annotations

from typing import Any


def relative(a: Any, reference: Any) -> float:
    """|a - reference| / |reference|."""
    return float((a.double() - reference.double()).norm() / reference.double().norm().clamp_min(1e-300))


def against_fp64(lab: Any) -> dict[str, Any]:
    """Rung 2: one layer at a time, from inputs recorded in eager vLLM steps, on copies of the state."""
    import torch

    found: dict[str, Any] = {}
    for batch in (1, 8, 64):
        recorded = record_steps(lab, batch)
        with torch.inference_mode():
            found[f"B{batch} attend"] = [attend_errors(lab, *item) for item in recorded["attend"][:3]]
            found[f"B{batch} mix"] = [mix_errors(item) for item in recorded["mix"][-8:]]
    return found


def record_steps(lab: Any, batch: int) -> dict[str, list[Any]]:
    """Inputs, states and outputs of KDA blocks and mixtures in one eager decode step of vLLM."""
    from vllm.forward_context import get_forward_context
    from vllm.models.kimi_k3.nvidia import model as vllm_model

    kept: dict[str, list[Any]] = {"attend": [], "mix": []}
    before: dict[str, Any] = {}
    hooks = []

    def decoding(module: Any) -> Any:
        metadata = (get_forward_context().attn_metadata or {}).get(module.prefix)
        return (
            metadata if metadata is not None and metadata.num_decodes and not metadata.num_prefills else None
        )

    def enter(module: Any, _args: Any, kwargs: Any) -> None:
        metadata = decoding(module)
        if metadata is None or len(kept["attend"]) >= 3:
            return
        slots = metadata.non_spec_state_indices_tensor[:batch].long()
        conv, state = module.kv_cache[:2]
        before[module.prefix] = (
            kwargs["hidden_states"].clone(),
            slots,
            conv[slots].clone(),
            state[slots].clone(),
        )

    def leave(module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
        if module.prefix not in before:
            return
        x, slots, conv, state = before.pop(module.prefix)
        now = module.kv_cache[1][slots].clone()
        kept["attend"].append(
            (module, x, conv, state, output.clone(), now, module.kv_cache[0][slots].clone())
        )

    mixture = vllm_model.attn_res

    def watched(prefix: Any, delta: Any, blocks: Any, *rest: Any, **named: Any) -> Any:
        if prefix.shape[0] != batch or len(kept["mix"]) >= 40:
            return mixture(prefix, delta, blocks, *rest, **named)
        given = (prefix.clone(), None if delta is None else delta.clone(), blocks.clone(), rest, named)
        out = mixture(prefix, delta, blocks, *rest, **named)
        kept["mix"].append((given, out.clone(), prefix.clone()))
        return out

    layers = [x.self_attn for x in lab.decode.layers if hasattr(x.self_attn, "in_proj_qkvgfab")]
    for attention in layers[-3:]:
        hooks.append(attention.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(attention.register_forward_hook(leave, with_kwargs=True))
    lab.use("vllm")
    vllm_model.attn_res = watched
    try:
        with lab.eager():
            lab.tokens(lab.prompts(batch), 4)
    finally:
        vllm_model.attn_res = mixture
        for hook in hooks:
            hook.remove()
    return kept


def attend_errors(
    lab: Any, module: Any, x: Any, conv: Any, state: Any, out: Any, after: Any, conv_after: Any
) -> Any:
    """Our KDA block and vLLM's, against the formulas in FP64."""
    import torch

    from runtime.engine.hopper import weights
    from runtime.kernels.common.launch.overlap import Overlap
    from runtime.kernels.kda.composed import kda_decode_composed
    from runtime.model.providers.kda import KdaBlock, KdaRows
    from runtime.model.step import Buffers

    w, n = weights.kda_weights(module), x.shape[0]
    first = lab.decode.channels_first

    def paged(t: Any, dtype: Any = None) -> Any:
        return torch.cat([torch.zeros_like(t[:1]), t]).to(dtype or t.dtype)

    slots = torch.arange(1, n + 1, device=x.device, dtype=torch.int32).view(n, 1)
    windows = conv.transpose(1, 2).contiguous() if first else conv
    wide_state, wide_windows = paged(state, torch.float64), paged(windows, torch.float64)
    y = torch.empty(n, w.f_b.shape[0], dtype=torch.float64, device=x.device)
    kda_decode_composed(
        x.double() @ w.in_proj.double().T, w.f_b.double(), w.conv.double(), w.A_log.double(), w.dt_bias.double(),
        w.norm.double(), wide_windows, wide_state, slots, None, y, lower_bound=w.lower_bound, eps=w.eps,
    )  # fmt: skip
    reference = y @ w.o_proj.double().T
    buffers = Buffers.allocate(n, x.shape[1], 1, w.in_proj.shape[0], w.f_b.shape[0], x.device)
    buffers.y.fill_(float("nan"))
    our_state, our_windows = paged(state), paged(windows)
    block = KdaBlock(w, Overlap())
    ours = block(x, KdaRows(our_windows, our_state, slots, None), buffers, buffers.attention)
    torch.cuda.synchronize()
    kept = conv_after.transpose(1, 2) if first else conv_after
    return {
        "ours": relative(ours, reference), "vllm": relative(out, reference),
        "ours_state": relative(our_state[1:], wide_state[1:]), "vllm_state": relative(after, wide_state[1:]),
        "windows_differ": int((our_windows[1:, :3] != kept[:, :3]).sum()), "choice": block.core.choice.variant,
        "in_proj": block.in_projection.choice(n).variant, "o_proj": block.o_proj.choice(n).variant,
    }  # fmt: skip


def mix_errors(item: Any) -> dict[str, Any]:
    """Our mixture and vLLM's, against the formulas in FP64."""
    from runtime.kernels.attn_res.dispatch import AttnRes
    from runtime.kernels.attn_res.reference import attn_res
    from runtime.kernels.attn_res.spec import AttnResSpec

    (prefix, delta, blocks, rest, named), out, prefix_after = item
    norm, vec, out_norm = (None if t is None else t.data for t in rest)
    write = None if named["block_write_idx"] < 0 else named["block_write_idx"]

    def wide(t: Any) -> Any:
        return None if t is None else t.double()

    summed = prefix if delta is None else (prefix.float() + delta.float()).to(prefix.dtype)
    reference = attn_res(
        wide(summed), None, wide(blocks), num_blocks=named["num_blocks"], write=write, score_norm=wide(norm),
        score_vec=wide(vec), eps=named["eps"], out_norm=wide(out_norm), out_eps=named["output_norm_eps"],
    ).out  # fmt: skip
    spec = AttnResSpec(
        prefix.shape[1], named["num_blocks"], write, delta is not None, out_norm is not None, named["eps"],
        named["output_norm_eps"],
    )  # fmt: skip
    operator = AttnRes(spec, norm, vec, out_norm)
    ours = prefix.new_full(prefix.shape, float("nan"))
    operator(prefix, delta, blocks, ours)
    return {
        "ours": relative(ours, reference), "vllm": relative(out, reference), "blocks": named["num_blocks"],
        "write": write, "prefix_equal": bool((prefix == prefix_after).all()), "choice": operator.choice.variant,
    }  # fmt: skip
