"""The weight-streaming GEMM on a GPU: against the reference, rows independent of each other, chains, jitter."""

import pytest
import torch

from runtime.kernels.common.launch.device import H200
from runtime.kernels.common.launch.dispatch import FallbackError, strict
from runtime.kernels.common.workshop.testing import Guarded, bf16_ulps, relative_error, replayed_bits
from runtime.kernels.skinny_gemm import skinny_gemm
from runtime.kernels.skinny_gemm.dispatch import SkinnyGemm
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec
from runtime.kernels.skinny_gemm.table import PLANS

pytestmark = pytest.mark.gpu


def operator(n, k, epilogue="bf16", provider="cute"):
    weight = (torch.randn(n, k, device="cuda") / k**0.5).bfloat16()
    return SkinnyGemm(SkinnyGemmSpec(n, k, epilogue), weight, provider=provider)


def run_and_check(op, rows):
    guarded, spec = Guarded(), op.spec
    x = guarded("x", torch.randn(rows, spec.k, device="cuda").bfloat16())
    out = guarded.poisoned("out", (rows, spec.columns), spec.out_dtype)
    op(x, out)
    guarded.check()
    exact = (
        skinny_gemm(x, op.weight, "fp32")
        if spec.epilogue == "bf16"
        else skinny_gemm(x, op.weight, spec.epilogue)
    )
    if spec.epilogue == "fp32":
        assert relative_error(out, exact) < 2e-6
    else:
        # The sum may fall on the other side of a rounding boundary; SiTU passes a changed gate or up on.
        assert relative_error(out, exact) < 3e-3
        assert bf16_ulps(out, exact) <= (1.01 if spec.epilogue == "bf16" else 6)


@pytest.mark.parametrize("rows", [1, 3, 8, 16, 31])
@pytest.mark.parametrize("key", PLANS[H200], ids=str)
def test_a_projection_of_k3_equals_the_reference(key, rows):
    run_and_check(operator(*key), rows)


@pytest.mark.parametrize("key", PLANS[H200], ids=str)
def test_the_largest_batch_of_a_plan_equals_the_reference(key):
    run_and_check(operator(*key), PLANS[H200][key].buckets[-1].rows)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 15, 16, 17, 32])
@pytest.mark.parametrize("epilogue", ["bf16", "fp32", "situ"])
def test_odd_batches_and_unmeasured_shapes_equal_the_reference(epilogue, rows):
    run_and_check(operator(992, 448, epilogue), rows)
    run_and_check(
        operator(1000, 1472, epilogue) if epilogue != "situ" else operator(1024, 1472, epilogue), rows
    )


@pytest.mark.parametrize(
    "key",
    [(6288, 7168, "bf16"), (896, 7168, "fp32"), (7168, 1536, "bf16"), (7168, 768, "bf16")],
    ids=str,
)
def test_a_row_has_the_same_bits_whatever_the_other_rows_are(key):
    op, row = operator(*key), torch.randn(1, key[1], device="cuda").bfloat16()
    alone = torch.empty(1, op.spec.columns, dtype=op.spec.out_dtype, device="cuda")
    op(row, alone)
    for rows in (2, 8, 9, 16, 27, 32):
        for at in (0, rows - 1):
            x = torch.randn(rows, key[1], device="cuda").bfloat16() * 3
            x[at] = row
            out = torch.empty(rows, op.spec.columns, dtype=op.spec.out_dtype, device="cuda")
            op(x, out)
            assert torch.equal(out[at], alone[0])


def test_replays_under_jitter_give_the_same_bits():
    op, x = operator(7168, 1536), torch.randn(8, 1536, device="cuda").bfloat16()
    out = torch.empty(8, 7168, dtype=torch.bfloat16, device="cuda")
    replayed_bits(lambda: op(x, out), lambda: out.fill_(float("nan")), [out])


def test_a_chain_reads_what_the_kernel_before_it_wrote():
    """Each kernel prefetches weights while its predecessor runs; its activations must be the predecessor's result."""
    down, up = operator(3584, 7168), operator(7168, 3584)
    x = torch.randn(4, 7168, device="cuda").bfloat16()
    low = torch.empty(4, 3584, dtype=torch.bfloat16, device="cuda")
    high, last = torch.empty_like(x), torch.empty_like(low)

    def run():
        down(x, low)
        up(low, high)
        down(high, last)

    def reset():
        for tensor in (low, high, last):
            tensor.fill_(float("nan"))

    replayed_bits(run, reset, [low, high, last])
    torch.testing.assert_close(high, skinny_gemm(low, up.weight), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(last, skinny_gemm(high, down.weight), rtol=1e-2, atol=1e-2)


def test_strided_rows_are_accepted():
    op = operator(7168, 1536)
    wide = torch.randn(5, 1536 + 128, device="cuda").bfloat16()
    out = torch.empty(5, 7168 + 8, dtype=torch.bfloat16, device="cuda")[:, :7168]
    op(wide[:, 64:1600], out)
    assert bf16_ulps(out, skinny_gemm(wide[:, 64:1600], op.weight, "fp32")) <= 1.01


@pytest.mark.parametrize("epilogue", ["bf16", "fp32", "situ"])
def test_the_fallback_gives_the_same_result(epilogue):
    run_and_check(operator(1536, 7168, epilogue, provider="cublas"), 40)


def test_the_measured_shapes_take_the_fast_path_and_others_say_why():
    with strict():
        op = operator(6288, 7168, provider="auto")
        assert op.choice(1).variant == "cute"
    with pytest.raises(FallbackError), strict():
        operator(1000, 448, provider="auto")


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (torch.zeros(2, 1536), None, "x must be torch.bfloat16"),
        (torch.zeros(2, 1000).bfloat16(), None, "x must be of shape [?] x 1536"),
        (torch.zeros(2, 1536).bfloat16(), None, "x must be on a CUDA device"),
        (
            torch.zeros(2, 1536).bfloat16().cuda,
            torch.zeros(3, 7168).bfloat16().cuda,
            "out must be of shape 2 x 7168",
        ),
    ],
    ids=["dtype", "columns", "device", "out"],
)
def test_a_wrong_argument_is_named_before_any_launch(x, out, message):
    x, out = (t() if callable(t) else t for t in (x, out))
    with pytest.raises(ValueError, match=message):
        operator(7168, 1536)(x, out)
