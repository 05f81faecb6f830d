"""Seeded weights and loading."""

from __future__ import annotations

import pytest
import torch

from runtime.kernels.common.maths.mxfp4 import decode_mxfp4, encode_mxfp4
from runtime.model.config import TINY
from runtime.model.model import K3Model
from runtime.model.weights import checkpoint_shapes, load_module, missing_weights, seeded_weights


def test_a_tensor_depends_on_its_name_and_the_seed_alone() -> None:
    first = dict(seeded_weights(TINY))
    again = dict(seeded_weights(TINY))
    other = dict(seeded_weights(TINY, seed=1))
    name = "language_model.model.layers.3.self_attn.q_b_proj.weight"
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name][:64, :64], first[name.replace("layers.3", "layers.7")][:64, :64])


def test_the_inventory_covers_every_parameter_and_nothing_else() -> None:
    model = K3Model(TINY)
    filled = load_module(model, seeded_weights(TINY))
    assert missing_weights(model, filled) == []
    assert dict(checkpoint_shapes(TINY)).keys() == {
        n.removeprefix("language_model.") for n, _ in seeded_weights(TINY)
    }


def test_a_missing_tensor_is_named() -> None:
    model = K3Model(TINY)
    weights = ((n, w) for n, w in seeded_weights(TINY) if "layers.2.self_attn.A_log" not in n)
    assert missing_weights(model, load_module(model, weights)) == ["model.layers.2.self_attn.A_log.weight"]


def test_packed_experts_load_as_their_decoded_values() -> None:
    def packed():
        for name, weight in seeded_weights(TINY):
            if ".experts." in name:
                codes, scales = encode_mxfp4(weight)
                yield name.replace(".weight", ".weight_scale"), scales
                yield name.replace(".weight", ".weight_packed"), codes
            else:
                yield name, weight

    model = K3Model(TINY)
    assert missing_weights(model, load_module(model, packed())) == []
    source = dict(seeded_weights(TINY))["language_model.model.layers.1.block_sparse_moe.experts.5.w2.weight"]
    expected = decode_mxfp4(*encode_mxfp4(source))
    assert torch.equal(model.model.layers[1].block_sparse_moe.experts.w2[5], expected)


def test_a_packed_expert_without_its_scale_is_refused() -> None:
    name = "model.layers.1.block_sparse_moe.experts.5.w2.weight_packed"
    with pytest.raises(ValueError, match=r"experts\.5\.w2"):
        load_module(K3Model(TINY), [(name, torch.zeros(128, 32, dtype=torch.uint8))])


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4, 1), (16,)], ids=str)
def test_a_log_loads_in_its_published_layouts(shape: tuple[int, ...]) -> None:
    model = K3Model(TINY)
    values = torch.arange(16.0) if shape == (16,) else torch.arange(4.0)
    load_module(model, [("language_model.model.layers.0.self_attn.A_log", values.reshape(shape))])
    assert model.model.layers[0].self_attn.A_log.weight.tolist() == [0, 1, 2, 3]
