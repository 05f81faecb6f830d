"""The definition of the GEMM's epilogues, its launch plans and its choice of implementation; no GPU needed."""

import pytest
import torch

from runtime.kernels.common.launch.device import H200, Device
from runtime.kernels.common.maths.activations import situ
from runtime.kernels.skinny_gemm import skinny_gemm
from runtime.kernels.skinny_gemm.dispatch import MARGIN, choose_skinny_gemm
from runtime.kernels.skinny_gemm.plans import SHARED_BYTES, default_plan
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec, unsupported
from runtime.kernels.skinny_gemm.table import PLANS

HOPPER = Device(H200, "sm_90a")
X, W = torch.randn(5, 64).bfloat16(), torch.randn(12, 64).bfloat16()


def test_the_product_is_accumulated_wide_and_rounded_once():
    exact = X.double() @ W.double().T
    torch.testing.assert_close(skinny_gemm(X.double(), W.double()), exact)
    assert torch.equal(skinny_gemm(X, W, "fp32").bfloat16(), skinny_gemm(X, W))
    torch.testing.assert_close(skinny_gemm(X, W, "fp32"), exact.float(), rtol=1e-5, atol=1e-5)


def test_situ_rounds_gate_and_up_before_the_activation():
    gate, up = skinny_gemm(X, W).chunk(2, -1)
    assert torch.equal(skinny_gemm(X, W, "situ"), situ(gate, up))


def test_bad_epilogues_are_refused():
    with pytest.raises(ValueError, match="'gelu'"):
        skinny_gemm(X, W, "gelu")
    with pytest.raises(ValueError, match="even number of rows"):
        skinny_gemm(X, W[:11], "situ")


@pytest.mark.parametrize("key", PLANS[H200], ids=str)
def test_a_measured_plan_can_be_launched(key):
    n, k, epilogue = key
    plan = PLANS[H200][key]
    assert [b.rows for b in plan.buckets] == sorted(b.rows for b in plan.buckets)
    for bucket in plan.buckets:
        slot = 128 * (bucket.tile + (0 if bucket.direct else bucket.rows))
        partial_sums = 4 * -(-bucket.tile // 16) * 16 * bucket.rows
        exchange = partial_sums if plan.splits > 1 else 0
        ring = plan.warps * max(bucket.depth * slot, partial_sums)
        assert (ring + exchange) * bucket.resident <= SHARED_BYTES
        if bucket.direct:
            assert bucket.depth * plan.warps * plan.splits * 64 >= k, "direct has no refill"
        assert k // 64 % plan.splits == 0 and k // 64 // plan.splits % plan.warps == 0
        assert bucket.tile % (16 if epilogue == "situ" else 8) == 0 and bucket.rows >= plan.splits
        if epilogue == "situ":
            assert n % bucket.tile == 0


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 31, 32, 33, 64])
@pytest.mark.parametrize("key", PLANS[H200], ids=str)
def test_automatic_choice_never_takes_what_was_measured_slower(key, rows, monkeypatch):
    monkeypatch.setattr("runtime.kernels.skinny_gemm.dispatch.missing_packages", lambda *_: ())
    choice = choose_skinny_gemm(SkinnyGemmSpec(*key), rows, HOPPER)
    bucket = PLANS[H200][key].bucket(rows)
    margin = 1.0 if key[2] == "situ" else MARGIN
    faster = bucket is not None and bucket.us is not None and bucket.us <= margin * bucket.cublas_us
    assert choice.variant == ("cute" if faster else "cublas")
    assert "us" in choice.reason or "no launch shape" in choice.reason


def test_shapes_that_were_not_measured_go_to_cublas_and_can_be_requested(monkeypatch):
    monkeypatch.setattr("runtime.kernels.skinny_gemm.dispatch.missing_packages", lambda *_: ())
    spec = SkinnyGemmSpec(1000, 448)
    assert choose_skinny_gemm(spec, 4, HOPPER).variant == "cublas"
    assert "not measured" in choose_skinny_gemm(spec, 4, HOPPER).reason
    assert choose_skinny_gemm(spec, 4, HOPPER, "cute").variant == "cute"


def test_all_reasons_against_the_kernel_are_given_at_once():
    reasons = unsupported(SkinnyGemmSpec(11, 100, "situ"), "sm_80")
    assert len(reasons) == 3
    with pytest.raises(ValueError, match=r"sm_80.*multiple of 64.*odd"):
        choose_skinny_gemm(
            SkinnyGemmSpec(11, 100, "situ"), 1, Device("NVIDIA A100-SXM4-80GB", "sm_80"), "cute"
        )


def test_a_plan_by_rule_fills_the_machine_in_one_wave():
    plan = default_plan(5000, 4096, "bf16")
    ctas = -(-5000 // plan.buckets[0].tile) * plan.splits
    assert 100 <= ctas <= 132
    assert default_plan(5000, 64 * 31, "bf16").warps == 1  # 31 blocks split no other way
