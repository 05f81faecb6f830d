"""PyTorch stand-ins for the C++ and Triton operators that vLLM's CPU worker calls.

An engine built without kernels (``VLLM_TARGET_DEVICE=empty``) has none of them. They are set only where missing, only
on the CPU platform, and only on the vLLM version whose call signatures they were written for. Sizes here are a few
requests and a tiny vocabulary; clarity wins over speed.
"""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runtime.versions import KNOWN_VLLM, vllm_version

LOCAL_WORLD_SIZE_ENV = "K3_LOCAL_WORLD_SIZE"
ANY_VLLM_ENV = "K3_ANY_VLLM"


def init_cpu_memory_env(nodes: list[int]) -> str:
    """NUMA binding is the operating system's business here."""
    return ""


def greedy_argmax(logits: Tensor) -> Tensor:
    """[n,vocab] → [n]."""
    return logits.argmax(-1)


def fused_gumbel_argmax(logits: Tensor, seeds: Tensor) -> Tensor:
    """Sample softmax(logits [n,vocab]) by the exponential race, one seed per row → [n]."""
    noise = torch.empty_like(logits)
    for row, seed in zip(noise, seeds.tolist(), strict=True):
        row.exponential_(generator=torch.Generator().manual_seed(seed))
    return (logits - noise.log()).argmax(-1)


def compute_slot_mapping_kernel_impl(
    query_start_loc: Tensor, positions: Tensor, block_table: Tensor, slot_mapping: Tensor, block_size: int
) -> None:
    """Cache row of every token: its block's first row plus its offset; -1 behind the last token."""
    total = int(query_start_loc[-1])
    request = torch.repeat_interleave(torch.arange(len(query_start_loc) - 1), query_start_loc.diff().long())
    position = positions[:total]
    block = block_table[request, position // block_size].long()
    slot_mapping[:total] = block * block_size + position % block_size
    slot_mapping[total:] = -1


def eagle_prepare_inputs_padded_kernel_impl(
    cu_draft: Tensor,
    valid: Tensor,
    query_start_loc: Tensor,
    sample_index: Tensor,
    rejected: Tensor,
    requests: int,
) -> None:
    """Per request: how many drafts were rejected, and the row of its last valid token."""
    drafts = cu_draft[:requests].diff(prepend=cu_draft.new_zeros(1))
    lost = torch.where(drafts > 0, drafts + 1 - valid[:requests], 0)
    rejected[:requests] = lost
    sample_index[:requests] = (query_start_loc[1 : requests + 1] - 1 - lost).to(sample_index.dtype)


def eagle_prepare_next_token_padded_kernel_impl(
    sampled: Tensor,
    discard: Tensor,
    backup: Tensor,
    next_token: Tensor,
    valid: Tensor,
    vocab: int,
    width: int,
    n: int,
) -> None:
    """Per request: number of valid sampled tokens (prefix order) and the last one, or the backup token."""
    usable = (sampled[:n, :width] >= 0) & (sampled[:n, :width] < vocab) & ~discard[:n, None].bool()
    count = usable.sum(1)
    columns = torch.arange(width).expand_as(usable)
    last = torch.where(usable, columns, -1).amax(1)
    chosen = sampled[:n, :width].gather(1, last.clamp_min(0)[:, None])[:, 0]
    next_token[:n] = torch.where(last >= 0, chosen, backup[:n])
    valid[:n] = count


def eagle_step_slot_mapping_metadata_kernel_impl(
    positions: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    out_positions: Tensor,
    out_slots: Tensor,
    block_size: int,
    max_model_len: int,
    pad: int,
) -> None:
    """Advance every request by one draft token; a request at the length limit goes to the padding slot."""
    n = positions.shape[0]
    moved = positions + 1
    over = moved >= max_model_len
    moved = moved.masked_fill(over, 0)
    block = block_table[torch.arange(n), (moved // block_size).clamp_max(block_table.shape[1] - 1)].long()
    out_positions[:n] = moved
    out_slots[:n] = (block * block_size + moved % block_size).masked_fill(over, pad)
    out_slots[n:] = pad
    seq_lens[:n] = torch.where(over, 1, seq_lens[:n] + 1).clamp_max(max_model_len).to(seq_lens.dtype)


def rejection_greedy_sample_kernel_impl(
    out: Tensor,
    cu_draft: Tensor,
    draft: Tensor,
    argmax: Tensor,
    bonus: Tensor,
    is_greedy: Tensor | None,
    width: int,
) -> None:
    """Greedy requests: the target's tokens up to and including the first mismatch, or all drafts and the bonus."""
    for i, (start, end) in enumerate(_segments(cu_draft)):
        if is_greedy is not None and not is_greedy[i]:
            continue
        wrong = (draft[start:end] != argmax[start:end]).nonzero()
        taken = int(wrong[0]) + 1 if len(wrong) else end - start
        out[i, :taken] = argmax[start : start + taken]
        if not len(wrong):
            out[i, end - start] = bonus.flatten()[i]


def rejection_random_sample_kernel_impl(
    out: Tensor,
    cu_draft: Tensor,
    draft: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    bonus: Tensor,
    recovered: Tensor,
    uniform: Tensor,
    is_greedy: Tensor,
    width: int,
    vocab: int,
    no_draft_probs: bool,
) -> None:
    """Sampled requests: accept draft x with probability min(1, p(x)/q(x)), else take the recovered token and stop."""
    for i, (start, end) in enumerate(_segments(cu_draft)):
        if is_greedy[i]:
            continue
        for step, row in enumerate(range(start, end)):
            token = int(draft[row])
            proposed = 1.0 if no_draft_probs or draft_probs is None else float(draft_probs[row, token])
            accepted = (
                token >= 0
                and proposed > 0
                and float(target_probs[row, token]) / proposed >= float(uniform[row])
            )
            out[i, step] = token if accepted else recovered[row]
            if not accepted:
                break
        else:
            out[i, end - start] = bonus.flatten()[i]


def sample_recovered_tokens_kernel_impl(
    out: Tensor,
    cu_draft: Tensor,
    draft: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    inverse_noise: Tensor,
    vocab: int,
    no_draft_probs: bool,
) -> None:
    """For every draft row a token of max(0, p - q) (or p without the draft token), by the exponential race."""
    for i, (start, end) in enumerate(_segments(cu_draft)):
        for row in range(start, end):
            if no_draft_probs or draft_probs is None:
                residual = target_probs[row].clone()
                residual[int(draft[row])] = 0
            else:
                residual = (target_probs[row] - draft_probs[row]).clamp_min(0)
            out[row] = (residual * inverse_noise[i]).argmax()


def expand_kernel_impl(
    out: Tensor, values: Tensor, cu_tokens: Tensor, replace_from: float, replace_to: float
) -> None:
    """Repeat each request's value over its tokens, one value replaced."""
    counts = cu_tokens.long().diff(prepend=torch.zeros(1, dtype=torch.long))
    replaced = torch.where(values == replace_from, torch.as_tensor(replace_to, dtype=values.dtype), values)
    out.copy_(torch.repeat_interleave(replaced, counts))


def _segments(cumulative: Tensor) -> list[tuple[int, int]]:
    ends = cumulative.tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


_STAND_INS: tuple[Callable[..., Any], ...] = (
    init_cpu_memory_env,
    greedy_argmax,
    fused_gumbel_argmax,
    compute_slot_mapping_kernel_impl,
    eagle_prepare_inputs_padded_kernel_impl,
    eagle_prepare_next_token_padded_kernel_impl,
    eagle_step_slot_mapping_metadata_kernel_impl,
    rejection_greedy_sample_kernel_impl,
    rejection_random_sample_kernel_impl,
    sample_recovered_tokens_kernel_impl,
    expand_kernel_impl,
)


def install() -> list[str]:
    """Set the missing operators; returns their names.

    Raises ``RuntimeError`` on a vLLM they were not written for, unless ``K3_ANY_VLLM`` says to try.
    """
    missing = [op for op in _STAND_INS if not hasattr(torch.ops._C, op.__name__)]
    if missing and vllm_version() not in KNOWN_VLLM and not os.environ.get(ANY_VLLM_ENV):
        raise RuntimeError(
            f"vLLM {vllm_version()} lacks CPU operators and k3's stand-ins are written for "
            f"{', '.join(sorted(KNOWN_VLLM))}; install that version"
        )
    for op in missing:
        setattr(torch.ops._C, op.__name__, op)
    return [op.__name__ for op in missing]


def set_local_world_size() -> None:
    """vLLM's multi-node executor takes the platform's device count for the ranks on a node; the CPU platform says 1."""
    if size := os.environ.get(LOCAL_WORLD_SIZE_ENV):
        from vllm.platforms import current_platform

        count = int(size)
        type(current_platform).device_count = classmethod(lambda cls: count)


def install_hybrid_kernels() -> None:
    """Stand-ins for the two Triton kernels that move recurrent state between blocks (prefix caching with drafts)."""
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON:
        return
    from vllm.triton_utils.dispatcher import KernelOverride
    from vllm.v1.worker import mamba_utils

    for name, implementation in (
        ("precopy_mamba_align_fused_kernel", _precopy_align),
        ("postprocess_mamba_fused_kernel", _postprocess),
    ):
        kernel = getattr(mamba_utils, name)
        if not isinstance(kernel, KernelOverride):
            setattr(mamba_utils, name, KernelOverride(kernel, _by_name(kernel, implementation)))


def _by_name(kernel: Any, implementation: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
    """Bind a launch's arguments to the kernel's own parameter names."""
    signature = inspect.signature(getattr(kernel, "func", kernel))

    def launch(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        implementation(bound.arguments)

    return launch


def _precopy_align(a: dict[str, Any]) -> None:
    """Before a step: a request entering a new block brings its state along."""
    for row in _request_rows(a):
        source, target = int(a["src_col_ptr"][row]), int(a["mamba_state_idx_ptr"][row])
        if source >= 0 and source != target:
            _copy_state(a, row, source, target, int(a["token_bias_ptr"][row]))


def _postprocess(a: dict[str, Any]) -> None:
    """After a step: when acceptance crossed a block boundary, keep the state at the boundary in the finished block."""
    block_size = a["block_size"]
    for row in _request_rows(a):
        accepted, source = int(a["num_accepted_tokens_ptr"][row]), int(a["mamba_state_idx_ptr"][row])
        computed = int(a["num_computed_tokens_ptr"][row])
        if a["PRECOMPUTED_NEW_COMPUTED"]:
            running = computed - accepted + 1
        else:
            running = computed + int(a["num_scheduled_tokens_ptr"][row]) - int(a["num_draft_tokens_ptr"][row])
        boundary = (running + accepted - 1) // block_size * block_size
        if boundary < running:
            continue
        bias, target = boundary - running, boundary // block_size - 1
        if source == target:
            a["num_accepted_tokens_out_ptr"][row] = 1
        if source != target or bias:
            _copy_state(a, row, source, target, bias)


def _request_rows(a: dict[str, Any]) -> list[int]:
    mapping = a["idx_mapping_ptr"]
    count = int(a["num_reqs"])
    return list(range(count)) if mapping is None else [int(i) for i in mapping[:count] if int(i) >= 0]


def _copy_state(a: dict[str, Any], row: int, source: int, target: int, bias: int) -> None:
    """Copy one request's state between block columns, for every layer and state tensor.

    A state kept per slot moves whole, from the column of the accepted draft (``source + bias``); a conv window
    (width > 0) moves shifted by ``bias`` tokens within the source block.
    """
    if a["CONV_STATE_DIM_FIRST"]:
        raise NotImplementedError("the channel-first conv layout (VLLM_SSM_CONV_STATE_LAYOUT=DS) on CPU")
    for s in range(a["state_base_addrs_ptr"].numel()):
        table = int(a["block_table_ptrs_ptr"][int(a["state_group_indices_ptr"][s])])
        base, stride = int(a["state_base_addrs_ptr"][s]), int(a["state_block_strides_ptr"][s])
        token_bytes = int(a["state_inner_sizes_ptr"][s]) * int(a["state_elem_sizes_ptr"][s])
        width = int(a["state_conv_widths_ptr"][s])
        row_start = table + 4 * row * int(a["block_table_stride_req"])
        to = base + stride * _int32_at(row_start + 4 * target)
        if width > 0:
            origin = base + stride * _int32_at(row_start + 4 * source) + bias * token_bytes
            ctypes.memmove(to, origin, (width - bias) * token_bytes)
        else:
            ctypes.memmove(to, base + stride * _int32_at(row_start + 4 * (source + bias)), token_bytes)


def _int32_at(address: int) -> int:
    return ctypes.c_int32.from_address(address).value
