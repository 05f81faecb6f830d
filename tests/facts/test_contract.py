"""k3ctl's facts about Kimi K3 against what ``runtime`` states for itself: two sources that share nothing."""

from __future__ import annotations

from k3ctl.facts import k3
from runtime.model import decode
from runtime.model.config import FULL_SIZE, K3Config

SAME_SIZES = {
    "hidden": "hidden_size",
    "vocab": "vocab_size",
    "layers": "num_hidden_layers",
    "dense_layers": "first_k_dense_replace",
    "dense_intermediate": "intermediate_size",
    "head_dim": "kda_head_dim",
    "conv_width": "conv_width",
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "rope_dim": "qk_rope_head_dim",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_token",
    "latent": "routed_expert_hidden_size",
    "expert_intermediate": "moe_intermediate_size",
    "residual_block": "attn_res_block_size",
}


def test_every_size_is_the_models() -> None:
    mine = {name: getattr(k3.K3, name) for name in SAME_SIZES}
    assert mine == {name: getattr(FULL_SIZE, field) for name, field in SAME_SIZES.items()}
    assert k3.K3.heads == FULL_SIZE.kda_num_heads == FULL_SIZE.num_attention_heads
    assert k3.K3.shared_intermediate == FULL_SIZE.num_shared_experts * FULL_SIZE.moe_intermediate_size
    assert k3.K3.kv_width == FULL_SIZE.latent_dim
    assert {FULL_SIZE.v_head_dim, FULL_SIZE.qk_nope_head_dim} == {k3.K3.head_dim}


def test_every_size_is_compared() -> None:
    known = set(SAME_SIZES) | {"heads", "shared_intermediate", "mla_layers"}
    assert set(k3.Shape.__dataclass_fields__) == known


def test_the_layers_are_in_the_models_order() -> None:
    assert set(k3.K3.mla_layers) == {i for i in range(FULL_SIZE.num_hidden_layers) if not FULL_SIZE.is_kda(i)}
    assert k3.K3.kda_layers == len(FULL_SIZE.kda_layers)


def test_the_row_limit_is_the_runtimes() -> None:
    assert decode.MAX_ROWS == k3.SPECIALIZED_ROWS
    assert decode.DecodeSetup(requested=True).max_rows == k3.SPECIALIZED_ROWS
    most = decode.DecodeSetup(requested=True, query_len=1 + k3.SPECIALIZED_DRAFTS)
    requests = k3.SPECIALIZED_ROWS // most.query_len

    def path(count: int) -> decode.Path:
        lengths = (most.query_len,) * count
        batch = decode.Batch(lengths, tuple(9 + n for n in lengths), (k3.SPECIALIZED_DRAFTS,) * count)
        return decode.plan(batch, most).path

    assert (path(requests), path(requests + 1)) == (decode.Path.SPECIALIZED, decode.Path.STANDARD)


def test_the_moe_is_the_one_in_the_models_config() -> None:
    config = FULL_SIZE.to_hf()
    assert k3.is_k3_moe(config["text_config"])
    assert K3Config.from_hf(config).num_experts == k3.K3_MOE["num_experts"]
    for key in k3.K3_MOE:
        assert not k3.is_k3_moe({**config["text_config"], key: "other"}), key
