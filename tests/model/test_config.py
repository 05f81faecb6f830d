"""The published sizes tie together: parameters, active parameters, checkpoint bytes, state bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runtime.model.config import FULL_SIZE, TINY, K3Config
from runtime.model.weights import checkpoint_shapes

MXFP4_BITS = 4.25


@pytest.fixture(scope="module")
def sizes() -> dict[str, int]:
    # one MoE layer stands for all 92: listing 896 experts 92 times takes a minute
    one = replace(FULL_SIZE, num_hidden_layers=2, kda_layers=frozenset({0, 1}))
    layer = [(n, s) for n, s in checkpoint_shapes(one) if n.startswith("model.layers.1.")]
    size = {n: _size(s) for n, s in layer}
    experts = sum(v for n, v in size.items() if ".experts." in n)
    moe_rest = sum(v for n, v in size.items() if ".block_sparse_moe." in n and ".experts." not in n)
    kda = sum(
        v for n, v in size.items() if ".self_attn." in n and "conv1d" not in n
    )  # as the public count does
    mla_one = replace(FULL_SIZE, num_hidden_layers=1, kda_layers=frozenset())
    named = {n: _size(s) for n, s in checkpoint_shapes(mla_one)}
    mla = sum(v for n, v in named.items() if ".self_attn." in n)
    dense = sum(v for n, v in named.items() if ".mlp." in n and "res" not in n)
    return {"experts": experts, "moe_rest": moe_rest, "kda": kda, "mla": mla, "dense": dense}


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def test_the_parts_have_the_sizes_that_add_up_to_the_published_totals(sizes: dict[str, int]) -> None:
    assert round(sizes["kda"] / 1e6, 1) == 443.6
    assert round(sizes["mla"] / 1e6, 1) == 232.2
    assert round(sizes["moe_rest"] / 1e6, 1) == 189.9
    assert round(sizes["dense"] / 1e6, 1) == 726.7
    assert round(sizes["experts"] / 896 / 1e6, 3) == 33.030


def test_totals_are_2_78_t_parameters_104_b_active_1_56_tb(sizes: dict[str, int]) -> None:
    vocabulary = FULL_SIZE.vocab_size * FULL_SIZE.hidden_size
    trunk = 69 * sizes["kda"] + 24 * sizes["mla"] + 92 * sizes["moe_rest"] + sizes["dense"] + 2 * vocabulary
    experts = 92 * sizes["experts"]
    assert round((trunk + experts) / 1e12, 4) == 2.7795
    active = trunk - vocabulary + experts * FULL_SIZE.num_experts_per_token / FULL_SIZE.num_experts
    assert round(active / 1e9, 1) == 104.2
    assert round((2 * trunk + experts * MXFP4_BITS / 8) / 1e12, 2) == 1.56


def test_full_size_has_69_kda_and_24_mla_layers_with_mla_last() -> None:
    assert len(FULL_SIZE.kda_layers) == 69
    assert [i for i in range(93) if not FULL_SIZE.is_kda(i)] == [*range(3, 92, 4), 92]
    assert FULL_SIZE.num_blocks == 8
    assert not FULL_SIZE.is_moe(0)
    assert FULL_SIZE.is_moe(1)


@pytest.mark.parametrize("config", [FULL_SIZE, TINY], ids=["full", "tiny"])
def test_a_config_survives_its_json(config: K3Config) -> None:
    hf = json.loads(json.dumps(config.to_hf()))
    assert K3Config.from_hf(hf) == config
    assert K3Config.from_hf(hf["text_config"]) == config


def test_every_missing_field_is_named_at_once() -> None:
    hf = TINY.to_hf()["text_config"]
    del hf["kv_lora_rank"], hf["linear_attn_config"]["head_dim"]
    with pytest.raises(ValueError, match=r"kv_lora_rank.*linear_attn_config\.head_dim"):
        K3Config.from_hf(hf)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("moe_layer_freq", 2),
        ("moe_router_activation_func", "softmax"),
        ("hidden_act", "silu"),
        ("mla_use_nope", False),
        ("mla_use_output_gate", False),
        ("latent_moe_use_norm", False),
        ("num_expert_group", 4),
        ("tie_word_embeddings", True),
        ("logit_scale", 0.5),
    ],
)
def test_a_variant_the_model_cannot_represent_is_refused(field: str, value: object) -> None:
    hf = TINY.to_hf()["text_config"] | {field: value}
    with pytest.raises(ValueError, match=f"{field} must be .*, got {value}"):
        K3Config.from_hf(hf)


def test_every_field_that_cannot_be_represented_is_named_at_once() -> None:
    hf = TINY.to_hf()["text_config"] | {"hidden_act": "silu"}
    hf["linear_attn_config"] = hf["linear_attn_config"] | {"use_full_rank_gate": False}
    with pytest.raises(
        ValueError, match=r"hidden_act must .*linear_attn_config\.use_full_rank_gate must be True"
    ):
        K3Config.from_hf(hf)
