"""The chain that vLLM runs on Hopper for MXFP4 experts, as a contender: its routing, Humming's GEMMs, its sum.

It reads the weights that ours read; only calls of the other packages' public functions are here.
"""

import json

import torch
from torch import Tensor

from runtime.kernels.common.workshop.bench import peer

_MOE = "vllm.model_executor.layers.fused_moe"
SITU = "(4.f * tanhf(a * 0.25f) / (1.f + expf(-a))) * (25.f * tanhf(b * 0.04f))"


def humming_installed() -> bool:
    """Whether Humming and vLLM's helpers can be imported."""
    return bool(
        peer("humming.forward", "humming_forward")
        and peer(f"{_MOE}.moe_align_block_size", "moe_align_block_size")
    )


def stock_topk(logits: Tensor, bias: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights and ids of vLLM's own routing kernel (sigmoid, one group, renormalised)."""
    route = peer(f"{_MOE}.router.grouped_topk_router", "fused_grouped_topk")
    return route(logits, logits, top_k, True, bias, 1, 1, "sigmoid", 1.0)


class HummingExperts:
    """One layer's experts by Humming: weights in its layout, scales as float8_e8m0fnu.

    latent: K. width: I as stored (what vLLM pads is padded here too).
    """

    def __init__(
        self, latent: int, width: int, w13: Tensor, w13_scale: Tensor, w2: Tensor, w2_scale: Tensor
    ) -> None:
        self.experts = w13.shape[0]
        self.latent, self.width = latent, width
        e8m0 = torch.float8_e8m0fnu
        self.w13, self.w2 = (w13, w13_scale.view(e8m0)), (w2, w2_scale.view(e8m0))
        self._gate_up, self._down = self._config(2 * width, latent), self._config(latent, width)
        self._plans = [self._tuning(config) for config in (self._gate_up, self._down)]
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self._locks = torch.zeros(8 * sms, dtype=torch.int32, device=w13.device)
        compute = {"use_batch_invariant": False, "use_f16_accum": False, "gemm_type": "indexed"}
        self._compute = json.dumps(compute)

    def _config(self, rows, columns):
        dtypes, schema = peer("humming", "dtypes"), peer("humming.schema", "HummingWeightSchema")
        mxfp4 = schema(b_dtype=dtypes.float4e2m1, bs_dtype=dtypes.float8e8m0, weight_scale_group_size=32)
        sizes = {"num_experts": self.experts, "pad_n_to_multiple": 256, "pad_k_to_multiple": 128}
        prepare = peer("humming.transform", "prepare_layer_config")
        return prepare(rows, columns, mxfp4, torch_dtype=torch.bfloat16, device=0, **sizes)

    def _tuning(self, config):
        return peer("humming.tune", "get_heuristics_config")(layer_config=config, gemm_type="indexed")

    def _block(self, pairs, plan):
        """Pairs of an expert that Humming wants together, for this many pairs in all."""
        return next((c["block_shape"][0] for low, high, c in plan if low < pairs <= high), 64)

    def _align(self, ids, size):
        align = peer(f"{_MOE}.moe_align_block_size", "moe_align_block_size")
        return align(ids, size, self.experts, ignore_invalid_experts=True)

    def buffers(self, tokens: int, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Gate and up, activations, rows: what a call writes besides its result."""
        pairs, device = tokens * top_k, self.w13[0].device
        return tuple(
            torch.empty(pairs, columns, dtype=torch.bfloat16, device=device)
            for columns in (2 * self.width, self.width, self.latent)
        )

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor, buffers, out: Tensor) -> Tensor:
        """The weighted sum of each token's experts, by the six launches that vLLM makes."""
        forward, process = (
            peer("humming.forward", "humming_forward"),
            peer("humming.forward", "may_process_input"),
        )
        gate_up, hidden, rows = buffers
        sizes = [self._block(ids.numel(), plan) for plan in self._plans]
        sort = self._align(ids, sizes[0])
        sort2 = sort if sizes[1] == sizes[0] else self._align(ids, sizes[1])
        common = {"locks": self._locks, "compute_config": self._compute, "valid_shape_m": ids.numel()}

        def gemm(config, plan, weight, inputs, outputs, sorting, top_k):
            names = ("sorted_ids", "expert_ids", "num_tokens_padded")
            return forward(
                config,
                inputs=inputs,
                weight=weight[0],
                weight_scale=weight[1],
                outputs=outputs,
                top_k=top_k,
                tuning_config=json.dumps(plan),
                **dict(zip(names, sorting[:3], strict=True)),
                **common,
            )

        gemm(self._gate_up, self._plans[0], self.w13, x, gate_up, sort, ids.shape[1])
        process(
            self._down, inputs=gate_up, outputs=hidden, activation_type="binary_split", activation_impl=SITU
        )
        gemm(self._down, self._plans[1], self.w2, hidden, rows, sort2, 1)
        peer(f"{_MOE}.moe_fused_mul_sum", "moe_fused_mul_sum")(
            inputs=rows.view(*ids.shape, -1), topk_weights=weights, topk_ids=ids, expert_map=None, outputs=out
        )
        return out
