"""The whole model, from token ids to logits, over checkpoint names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.model.oracle import mxfp4
from tests.model.oracle.formulas import (
    Array,
    causal_attention,
    choose,
    closest_choice,
    delta_rule,
    expert_weights,
    l2_norm,
    log_decay,
    mixture,
    mlp,
    rms_norm,
    short_convolution,
    sigmoid,
)

KDA_NORM_EPS = 1e-5


class Oracle:
    """Logits of one sequence, all at once. ``config``: a ``config.json``; ``tensors``: arrays by checkpoint name.

    ``margin`` is the closest choice of experts seen so far: below the rounding of whatever is compared, the two may
    rightly differ.
    """

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.config: Mapping[str, Any] = config.get("text_config", config)
        self.kda: Mapping[str, Any] = self.config["linear_attn_config"]
        self.tensors = {name.removeprefix("language_model."): tensor for name, tensor in tensors.items()}
        self.eps = float(self.config["rms_norm_eps"])
        self.margin = float("inf")

    def logits(self, ids: Sequence[int]) -> Array:
        """Token ids [T] → [T,vocabulary]."""
        c, embedding = self.config, self._get("model.embed_tokens.weight")
        prefix, blocks = embedding[np.asarray(ids)], []
        for layer in range(c["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            x = self._residual(f"{name}self_attention_res", [*blocks, prefix])
            attention = self.attention(layer, self._norm(f"{name}input_layernorm", x))
            if layer % c["attn_res_block_size"] == 0:
                blocks, prefix = [*blocks, prefix], attention
            else:
                prefix = prefix + attention
            y = self._residual(f"{name}mlp_res", [*blocks, prefix])
            prefix = prefix + self.feed_forward(layer, self._norm(f"{name}post_attention_layernorm", y))
        h = self._residual("model.output_attn_res", [*blocks, prefix])
        return self._norm("model.norm", h) @ self._get("lm_head.weight").T

    def attention(self, layer: int, x: Array) -> Array:
        name = f"model.layers.{layer}.self_attn."
        return self._kda(name, x) if layer + 1 in self.kda["kda_layers"] else self._mla(name, x)

    def _kda(self, name: str, x: Array) -> Array:
        heads, dim = self.kda["num_heads"], self.kda["head_dim"]

        def by_head(y: Array) -> Array:
            return y.reshape(*y.shape[:-1], heads, dim)

        def convolved(which: str) -> Array:
            taps = self._get(f"{name}{which}_conv1d.weight").reshape(heads * dim, -1)
            return by_head(short_convolution(self._linear(f"{name}{which}_proj", x), taps))

        raw = self._linear(f"{name}f_b_proj", self._linear(f"{name}f_a_proj", x))
        decay = log_decay(
            by_head(raw),
            self._get(f"{name}A_log").reshape(-1)[:heads],
            by_head(self._get(f"{name}dt_bias").reshape(-1)),
            self.kda.get("gate_lower_bound"),
        )
        beta = sigmoid(self._linear(f"{name}b_proj", x))
        q, k = l2_norm(convolved("q")) / np.sqrt(dim), l2_norm(convolved("k"))
        o = delta_rule(q, k, convolved("v"), decay, beta)
        gate = by_head(self._linear(f"{name}g_proj", x))
        y = rms_norm(o, self._get(f"{name}o_norm.weight"), KDA_NORM_EPS) * sigmoid(gate)
        return self._linear(f"{name}o_proj", y.reshape(len(x), -1))

    def _mla(self, name: str, x: Array) -> Array:
        c, tokens = self.config, len(x)
        heads, key, value = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
        width = key + c["qk_rope_head_dim"]
        q = self._linear(
            f"{name}q_b_proj", self._norm(f"{name}q_a_layernorm", self._linear(f"{name}q_a_proj", x))
        )
        down = self._linear(f"{name}kv_a_proj_with_mqa", x)
        latent, shared = down[:, : c["kv_lora_rank"]], down[:, c["kv_lora_rank"] :]
        up = self._linear(f"{name}kv_b_proj", self._norm(f"{name}kv_a_layernorm", latent))
        own, v = np.split(up.reshape(tokens, heads, key + value), [key], axis=-1)
        k = np.concatenate([own, np.repeat(shared[:, None], heads, axis=1)], axis=-1)
        o = causal_attention(q.reshape(tokens, heads, width), k, v, 1 / np.sqrt(width))
        return self._linear(
            f"{name}o_proj", o.reshape(tokens, -1) * sigmoid(self._linear(f"{name}g_proj", x))
        )

    def feed_forward(self, layer: int, x: Array) -> Array:
        name = f"model.layers.{layer}."
        if layer < self.config["first_k_dense_replace"]:
            return self._mlp(f"{name}mlp.", x, ("gate_proj", "up_proj", "down_proj"))
        return self._moe(f"{name}block_sparse_moe.", x)

    def _moe(self, name: str, x: Array) -> Array:
        c, count = self.config, self.config["num_experts_per_token"]
        scores, bias = (
            sigmoid(self._linear(f"{name}gate", x)),
            self._get(f"{name}gate.e_score_correction_bias"),
        )
        chosen = choose(scores, bias, count)
        if count < scores.shape[1]:
            self.margin = min(self.margin, closest_choice(scores, bias, count))
        weights = expert_weights(
            scores, chosen, c.get("moe_renormalize", True), c.get("routed_scaling_factor", 1.0)
        )
        z = self._linear(f"{name}routed_expert_down_proj", x)
        r = np.zeros_like(z)
        for expert in np.unique(chosen):
            token, slot = np.nonzero(chosen == expert)
            out = self._mlp(f"{name}experts.{expert}.", z[token], ("w1", "w3", "w2"))
            r[token] += weights[token, slot, None] * out
        routed = self._linear(f"{name}routed_expert_up_proj", self._norm(f"{name}routed_expert_norm", r))
        return routed + self._mlp(f"{name}shared_experts.", x, ("gate_proj", "up_proj", "down_proj"))

    def _mlp(self, name: str, x: Array, parts: tuple[str, str, str]) -> Array:
        gate, up, down = (self._matrix(name + part) for part in parts)
        c = self.config
        return mlp(x, gate, up, down, c["activation_situ_beta"], c["activation_situ_linear_beta"])

    def _residual(self, name: str, sources: list[Array]) -> Array:
        vector = self._get(f"{name}_proj.weight").reshape(-1)
        return mixture(sources, self._get(f"{name}_norm.weight"), vector, self.eps)

    def _norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self._get(f"{name}.weight"), self.eps)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._matrix(name).T

    def _matrix(self, name: str) -> Array:
        """A plain weight, or an MXFP4 pair."""
        if f"{name}.weight" in self.tensors:
            return self._get(f"{name}.weight")
        return mxfp4.decode(self.tensors[f"{name}.weight_packed"], self.tensors[f"{name}.weight_scale"])

    def _get(self, name: str) -> Array:
        return np.asarray(self.tensors[name], dtype=np.float64)
