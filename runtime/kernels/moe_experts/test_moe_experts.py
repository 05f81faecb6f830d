"""The routed experts on the CPU: reference, layout, the arithmetic of the dequantization, refusals."""

import pytest
import torch

from runtime.kernels.common.launch.device import H200
from runtime.kernels.common.launch.routing import group_pairs
from runtime.kernels.common.maths.activations import situ
from runtime.kernels.common.maths.mxfp4 import decode_mxfp4, encode_mxfp4
from runtime.kernels.moe_experts import moe_experts
from runtime.kernels.moe_experts.layout import pack_humming, unpack_humming
from runtime.kernels.moe_experts.spec import (
    MoeExpertsSpec,
    check_scales,
    check_weights,
    unsupported,
)
from runtime.kernels.moe_experts.table import OTHER, TABLES, launch_of

T, K, I, E, SLOTS = 5, 64, 64, 6, 3


def random_weight(experts, rows, columns):
    """Random (codes, scales) in the checkpoint's format."""
    codes = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8)
    return codes, torch.randint(118, 123, (experts, rows, columns // 32), dtype=torch.uint8)


def choices(tokens=T, experts=E):
    ids = torch.stack([torch.randperm(experts)[:SLOTS] for _ in range(tokens)])
    return torch.rand(tokens, SLOTS, dtype=torch.float64), ids


def test_the_reference_is_the_literal_sum():
    w13, w2 = random_weight(E, 2 * I, K), random_weight(E, K, I)
    x = torch.randn(T, K, dtype=torch.float64)
    weights, ids = choices()
    expected = torch.zeros_like(x)
    for token in range(T):
        for slot in range(SLOTS):
            expert = int(ids[token, slot])
            matrix = decode_mxfp4(w13[0][expert], w13[1][expert]).double()
            gate, up = matrix[:I] @ x[token], matrix[I:] @ x[token]
            row = decode_mxfp4(w2[0][expert], w2[1][expert]).double() @ situ(gate, up)
            expected[token] += weights[token, slot] * row
    torch.testing.assert_close(moe_experts(x, weights, ids, w13, w2), expected)


def test_ranks_of_experts_add_up():
    w13, w2 = random_weight(E, 2 * I, K), random_weight(E, K, I)
    x = torch.randn(T, K, dtype=torch.float64)
    weights, ids = choices()
    parts = [
        moe_experts(x, weights, ids, [w[at : at + 2] for w in w13], [w[at : at + 2] for w in w2], first=at)
        for at in range(0, E, 2)
    ]
    torch.testing.assert_close(sum(parts), moe_experts(x, weights, ids, w13, w2))


def test_slots_of_nobody_add_nothing_even_with_a_nan_weight():
    w13, w2 = random_weight(E, 2 * I, K), random_weight(E, K, I)
    ids, weights = torch.tensor([[1, -1, 99]]), torch.tensor([[0.5, float("nan"), float("nan")]])
    x = torch.randn(1, K)
    alone = moe_experts(x, weights[:, :1], ids[:, :1], w13, w2)
    assert torch.equal(moe_experts(x, weights, ids, w13, w2), alone)
    assert torch.equal(moe_experts(x, weights, ids - 1000, w13, w2), torch.zeros(1, K))


def test_an_expert_that_nobody_chose_does_not_matter():
    w13, w2 = random_weight(E, 2 * I, K), random_weight(E, K, I)
    x, ids = torch.randn(2, K), torch.tensor([[0, 1, 2], [2, 3, 1]])
    before = moe_experts(x, torch.ones(2, 3), ids, w13, w2)
    w13[1][4:], w2[1][4:] = 255, 255  # NaN
    assert torch.equal(moe_experts(x, torch.ones(2, 3), ids, w13, w2), before)


# ---- layout ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 64, 32), (2, 128, 96), (3, 384, 64), (1, 768, 3584)])
def test_the_layout_goes_there_and_back(shape):
    codes, scales = random_weight(*shape)
    weight, packed_scales = pack_humming(codes, scales)
    assert weight.shape == (shape[0], shape[2] // 16, 2 * shape[1]) and weight.dtype == torch.int32
    back = unpack_humming(weight, packed_scales)
    assert torch.equal(back[0], codes) and torch.equal(back[1], scales)


def test_every_code_and_scale_is_where_the_kernels_look():
    experts, rows, columns = 2, 128, 64
    codes, scales = random_weight(experts, rows, columns)
    weight, packed = pack_humming(codes, scales)
    values = torch.stack([codes & 0xF, codes >> 4], dim=-1).flatten(-2)
    for e in range(experts):
        for n in range(rows):
            f, h, g = n % 64 // 16, n % 16 // 8, n % 8
            for k in range(columns):
                u, t, p = k % 16 // 8, k % 8 // 2, k % 2
                word = int(weight[e, k // 16, n // 64 * 128 + 4 * (4 * g + t) + f])
                assert (word >> (4 * (4 * p + 2 * h + u))) & 0xF == int(values[e, n, k])
            for k in range(columns // 32):
                assert packed[e, k, n // 64 * 64 + 8 * g + n % 64 // 8] == scales[e, n, k]


def test_a_checkpoint_survives_the_layout():
    values = torch.randn(2, 64, 96) * 0.02
    codes, scales = encode_mxfp4(values)
    back = unpack_humming(*pack_humming(codes, scales))
    assert torch.equal(decode_mxfp4(*back), decode_mxfp4(codes, scales))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 96, 64), "rows must be a multiple of 64"), ((1, 64, 48), "columns must be a multiple of 32")],
)
def test_shapes_that_do_not_fit_the_layout_are_refused(shape, message):
    experts, rows, columns = shape
    codes = torch.zeros(experts, rows, columns // 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        pack_humming(codes, torch.zeros(experts, rows, columns // 32, dtype=torch.uint8))


# ---- the arithmetic of `cute_mxfp4`, step by step in integers ------------------------------------------------


def emulated_operand(word, scale):
    """The four BF16x2 words that the kernel makes of a word, as 8 values [q, half]; both rows have this scale."""
    factor = torch.tensor((scale * 128 + 0x3F00) & 0xFFFF).to(torch.uint16).view(torch.bfloat16)
    values = []
    for q in range(4):
        source = word if q < 2 else word >> 8
        shift = 4 * (q % 2)
        bits = (source & (0x000F000F << shift)) * (0x1040 >> shift) & 0xFFFFFFFF & 0x81C081C0
        halves = [torch.tensor(b).to(torch.uint16).view(torch.bfloat16) for b in (bits & 0xFFFF, bits >> 16)]
        values.append([(half.double() * factor.double()).to(torch.bfloat16) for half in halves])
    return values


@pytest.mark.parametrize("scale", [0, 1, 2, 64, 118, 127, 128])
def test_the_kernels_bits_are_the_exact_weights(scale):
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    generator = torch.Generator().manual_seed(scale)
    words = [0x76543210, 0xFEDCBA98, *torch.randint(0, 2**32, (40,), generator=generator).tolist()]
    for word in words:
        for q, halves in enumerate(emulated_operand(word, scale)):
            for p, value in enumerate(halves):
                code = (word >> (4 * (q + 4 * p))) & 0xF
                exact = magnitudes[code & 7] * 2.0 ** (scale - 127) * (-1 if code & 8 else 1)
                assert float(value) == exact


# ---- refusals ----------------------------------------------------------------------------------------------


def test_scales_beyond_the_kernels_are_named():
    fine = torch.tensor([0, 1, 128], dtype=torch.uint8)
    assert check_scales(fine, fine) == []
    assert check_scales(fine, torch.tensor([129], dtype=torch.uint8)) == ["an E8M0 scale is 129, above 128"]
    assert check_scales(torch.tensor([255], dtype=torch.uint8)) == ["an E8M0 scale is 255, which means NaN"]
    assert check_scales(torch.tensor([], dtype=torch.uint8)) == []


def test_every_reason_is_given_at_once():
    assert unsupported(MoeExpertsSpec(), "sm_90a") == []
    assert unsupported(MoeExpertsSpec(width=192), "sm_90a") == []
    assert unsupported(MoeExpertsSpec(width=3072, experts=56), "sm_90a") == []
    assert len(unsupported(MoeExpertsSpec(latent=100, width=100, experts=896), "sm_80")) == 3


def weights_of(spec):
    w13, w2 = (
        random_weight(spec.experts, 2 * spec.width, spec.latent),
        random_weight(spec.experts, spec.latent, spec.width),
    )
    return [*pack_humming(*w13), *pack_humming(*w2)]


def test_a_wrong_layout_is_refused_with_all_reasons():
    spec = MoeExpertsSpec(latent=256, width=64, experts=2)
    weights = weights_of(spec)
    check_weights(spec, *weights)
    wrong = [weights[0].view(torch.float32), weights[1][:, :, :64], weights[2][:1], weights[3].int()]
    with pytest.raises(ValueError) as caught:
        check_weights(spec, *wrong)
    assert [name for name in ("w13 ", "w13_scale", "w2 ", "w2_scale") if name in str(caught.value)] == [
        "w13 ",
        "w13_scale",
        "w2 ",
        "w2_scale",
    ]


def test_the_checkpoints_own_format_is_refused():
    spec = MoeExpertsSpec(latent=256, width=64, experts=2)
    codes13, scales13 = random_weight(2, 128, 256)
    codes2, scales2 = random_weight(2, 256, 64)
    with pytest.raises(ValueError, match="not Humming's layout"):
        check_weights(spec, codes13, scales13, codes2, scales2)


def test_vllms_padded_copy_is_refused_at_the_native_width():
    padded = weights_of(MoeExpertsSpec(latent=256, width=256, experts=1))
    with pytest.raises(ValueError, match="w13 must be of shape 1 x 16 x 768"):
        check_weights(MoeExpertsSpec(latent=256, width=192, experts=1), *padded)


@pytest.mark.parametrize("width", [*TABLES[H200], 3072])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 17, 64, 1000])
def test_every_launch_divides_its_columns(width, tokens):
    launch = launch_of(TABLES[H200], width, tokens)
    assert launch in TABLES[H200].get(width, OTHER)
    steps = 3584 / 32 / (launch.gate_up.warps * launch.gate_up.cluster)
    assert steps == int(steps) and launch.gate_up.depth <= steps
    assert launch.down.depth <= width // 32


def test_groups_of_choices_cover_every_pair():
    weights, ids = choices(40)
    routing = group_pairs(ids, weights, first=0, local=E)
    rows = routing.rows[: int(routing.count)]
    assert sorted(rows[rows >= 0].tolist()) == list(range(40 * SLOTS))
