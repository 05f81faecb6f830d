"""vLLM's own modules as slots of our loop, called exactly as its ``KimiLinearModel.forward`` calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from runtime.model.step import Residual


def attend(layer: Any, positions: Tensor, x: Tensor) -> Tensor:
    """vLLM's attention module: x [T,D] → [T,D], reduced over the group."""
    out: Tensor = layer.self_attn(hidden_states=x, positions=positions)
    return out


def mix_before_attention(layer: Any, residual: Residual) -> tuple[Tensor, Residual]:
    """vLLM's mixture before attention; it updates the prefix and the written block in place."""
    x, prefix, blocks = layer._pre_attn_norm(residual.delta, residual.blocks, residual.prefix)
    return x, Residual(prefix, None, blocks)


def mix_before_feed_forward(layer: Any, residual: Residual) -> tuple[Tensor, Residual]:
    """vLLM's mixture after attention. It takes the attention output and decides by itself where it goes."""
    attention = residual.prefix if residual.delta is None else residual.delta
    x, prefix, blocks = layer._post_attn_norm(attention, residual.blocks, residual.prefix)
    return x, Residual(prefix, None, blocks)


def mix_last(backbone: Any, residual: Residual) -> tuple[Tensor, Residual]:
    """vLLM's mixture after the last layer, without norm."""
    from vllm.models.kimi_k3.nvidia import model

    mixed = model.attn_res(
        residual.prefix,
        residual.delta,
        residual.blocks,
        backbone.output_attn_res_norm.weight,
        backbone.output_attn_res_proj.weight.squeeze(0),
        None,
        num_blocks=backbone.num_attn_res_blocks,
        block_write_idx=-1,
        eps=backbone.output_attn_res_norm.variance_epsilon,
        output_norm_eps=0.0,
    )
    return mixed, Residual(residual.prefix, None, residual.blocks)


def feed_forward_kind(layer: Any) -> str:
    """`MoE` or `dense`."""
    return "MoE" if layer.is_moe_layer else "dense"


class AuxStreams:
    """The hidden states that a drafter reads, taken where vLLM takes them, over pipeline stages too."""

    def __init__(self, backbone: Any, intermediate_tensors: Any, x: Tensor) -> None:
        self.backbone = backbone
        self.remote = backbone.collect_remote_aux_hidden_states(intermediate_tensors)
        self.local: list[Tensor] = []
        self.wanted = bool(backbone.aux_hidden_state_layers)
        if is_first_stage() and backbone.start_layer in backbone.aux_hidden_state_layers:
            self.local.append(x)

    def after_layer(self, index: int, residual: Residual) -> None:
        """Keep the state after layer ``index`` if it is asked for."""
        if index + 1 in self.backbone.aux_hidden_state_layers:
            take = self.backbone._capture_aux_hidden_stream
            self.local.append(take(index, residual.prefix, residual.delta, residual.blocks))

    def pack(self, residual: Residual) -> Any:
        """What a stage that is not the last sends on."""
        from vllm.sequence import IntermediateTensors

        sent = {"hidden_states": residual.delta + residual.prefix, "residual": residual.blocks}
        return IntermediateTensors({**sent, **self.backbone.pack_local_aux_hidden_states(self.local)})

    def join(self, hidden_states: Tensor) -> Any:
        """What the last stage returns."""
        streams = [*self.remote, *self.local]
        return (hidden_states, streams) if streams else hidden_states


def decode_context() -> Any | None:
    """vLLM's forward context if a step may be specialized in it: not a PIECEWISE capture, with metadata by layer."""
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import get_forward_context, is_forward_context_available

    if not is_forward_context_available():
        return None
    context = get_forward_context()
    if context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE or not isinstance(
        context.attn_metadata, dict
    ):
        return None
    return context


def is_first_stage() -> bool:
    """Whether this worker embeds tokens."""
    from vllm.distributed import get_pp_group

    return bool(get_pp_group().is_first_rank)


def is_last_stage() -> bool:
    """Whether this worker makes logits."""
    from vllm.distributed import get_pp_group

    return bool(get_pp_group().is_last_rank)


def all_reduce() -> Callable[[Tensor], Tensor] | None:
    """vLLM's sum over the tensor-parallel group, or None on a single rank."""
    from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_reduce

    return tensor_model_parallel_all_reduce if get_tensor_model_parallel_world_size() > 1 else None


def channels_first() -> bool:
    """Whether vLLM keeps convolution windows with the channels before the taps."""
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    return bool(is_conv_state_dim_first())
