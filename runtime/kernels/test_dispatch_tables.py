"""Which launch each call site takes, without a GPU: a table over batch, heads, query length and promises."""

import sys

import pytest
import torch

from runtime.kernels.attn_res import dispatch as attn_res
from runtime.kernels.attn_res.spec import AttnResSpec
from runtime.kernels.attn_res.spec import unsupported as attn_res_unsupported
from runtime.kernels.common.launch import dispatch
from runtime.kernels.common.launch.device import H200, Device
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.kda import dispatch as kda
from runtime.kernels.kda.shapes import Split, Stream
from runtime.kernels.kda.spec import KdaDecodeSpec
from runtime.kernels.kda.spec import unsupported as kda_unsupported
from runtime.kernels.moe_experts import dispatch as moe_experts
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_route import dispatch as moe_route
from runtime.kernels.moe_route.spec import MoeRouteSpec
from runtime.kernels.skinny_gemm import dispatch as skinny
from runtime.kernels.skinny_gemm.dispatch import choose_skinny_gemm
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec

HOPPER = Device(H200, "sm_90a")
ATTN_RES = AttnResSpec(7168, 8, None, True, True, 1e-5, 1e-5)
PROMISES = [Overlap(), Overlap(True, False), Overlap(False, True), Overlap(True, True)]


@pytest.mark.parametrize(
    ("heads", "requests", "tokens", "shape"),
    [
        (12, 1, 1, Split(4, 2)),
        (6, 1, 1, Split(2, 2)),
        (6, 4, 1, Split(4, 2)),
        (12, 4, 1, Split(2, 2)),
        (12, 8, 1, Split(2, 2)),
        (12, 16, 1, Stream(11)),
        (12, 64, 1, Stream(11)),
        (6, 64, 1, Split(2, 2)),
        (96, 64, 1, Split(1, 2)),  # one lane per head would have to walk over more requests than it can
        (12, 2, 8, Split(4, 1)),
        (12, 8, 8, Split(2, 2)),
        (6, 16, 3, Split(2, 2)),
    ],
)
def test_kda_takes_the_measured_shape(heads, requests, tokens, shape):
    assert kda.launch(KdaDecodeSpec(heads, tokens), requests, 132, HOPPER)[0] == shape


@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.parametrize("requests", [1, 2, 8, 16, 24, 64])
def test_kda_never_uses_a_promise_that_the_call_site_does_not_make(requests, tokens, promise):
    _, used = kda.launch(KdaDecodeSpec(12, tokens, overlap=promise), requests, 132, HOPPER)
    assert used.settled <= promise.settled and used.early_trigger <= promise.early_trigger


def test_kda_does_not_stream_caches_that_the_copy_engine_cannot_read():
    shape, used = kda.launch(
        KdaDecodeSpec(12, overlap=Overlap(True, True)), 64, 132, HOPPER, streamable=False
    )
    assert shape == Split(1, 2) and used == Overlap()


@pytest.mark.parametrize("tokens", [1, 8, 9, 16, 17, 33, 64, 1000])
@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("hidden", [7168, 4096, 2048])
def test_attn_res_clusters_divide_the_hidden_size_into_whole_warps(hidden, promise, tokens):
    spec = AttnResSpec(hidden, 8, None, True, True, 1e-5, 1e-5, overlap=promise)
    launch = attn_res.launch_shape(spec, tokens, HOPPER)
    assert hidden % (launch.cluster * 256) == 0 and 1 <= launch.resident <= 8
    assert attn_res_unsupported(spec, "sm_90a") == []


def test_every_reason_against_a_kernel_is_given_at_once():
    reasons = attn_res_unsupported(AttnResSpec(1000, 9, None, True, True, 1e-5, 1e-5), "sm_80")
    assert len(reasons) == 3
    assert len(kda_unsupported(KdaDecodeSpec(0, 9, lower_bound=1.0), "cpu")) == 4


@pytest.fixture
def everything_installed(monkeypatch):
    for module in ("common.launch.dispatch", "skinny_gemm.dispatch"):
        monkeypatch.setattr(f"runtime.kernels.{module}.missing_packages", lambda *modules: ())


@pytest.mark.usefixtures("everything_installed")
@pytest.mark.parametrize(
    "device",
    [
        HOPPER,
        Device("NVIDIA H100 80GB HBM3", "sm_90a"),
        Device("NVIDIA H200 NVL", "sm_90a"),
        Device("NVIDIA B200", "sm_100a"),
        Device("NVIDIA B300 SXM6 AC", "sm_103a"),
    ],
    ids=lambda device: device.name,
)
def test_automatic_choice_takes_a_kernel_only_on_the_product_where_it_was_measured(device):
    choosers = (
        lambda requested: attn_res.choose_attn_res(ATTN_RES, device, requested),
        lambda requested: kda.choose_kda_decode(KdaDecodeSpec(12), device, requested),
        lambda requested: choose_skinny_gemm(SkinnyGemmSpec(6288, 7168), 8, device, requested),
    )
    for choose in choosers:
        choice = choose(dispatch.AUTO)
        assert (choice.variant == "cute") == (device == HOPPER)
        assert device == HOPPER or f"never measured on {device.name}" in choice.reason
        assert choose("cute").variant == "cute"


class CompiledLater:
    """Stands where a launch module stands; keeps what was compiled."""

    def __init__(self):
        self.kernels = set()

    def compiled(self, *key):
        self.kernels.add(key)

    def prepare(self, *key):
        self.kernels.add(key)

    compiled_gate_up = compiled_down = compiled


@pytest.mark.parametrize("tokens", [1, 4])
def test_after_prepare_no_call_of_kda_compiles(tokens, monkeypatch):
    later = CompiledLater()
    monkeypatch.setitem(sys.modules, "runtime.kernels.kda.cute_launch", later)
    monkeypatch.setattr("runtime.kernels.kda.cute_launch", later, raising=False)
    monkeypatch.setattr(kda, "multiprocessors", lambda index: 132)
    operator = object.__new__(kda.KdaDecode)
    operator.spec, operator._device = KdaDecodeSpec(12, tokens, overlap=Overlap(True, True)), HOPPER
    operator.choice, operator.weights = dispatch.Choice("kda_decode", "cute", ""), (torch.empty(0),)
    operator.prepare(64)
    for requests in range(1, 65):
        for can_stream in (True, False):
            shape, overlap = kda.launch(operator.spec, requests, 132, HOPPER, can_stream)
            assert (12, tokens, overlap, shape, "sm_90a") in later.kernels
    assert len(later.kernels) <= 8


@pytest.mark.usefixtures("everything_installed")
def test_after_prepare_no_call_of_a_projection_compiles(monkeypatch):
    later = CompiledLater()
    monkeypatch.setitem(sys.modules, "runtime.kernels.skinny_gemm.cute_launch", later)
    monkeypatch.setattr("runtime.kernels.skinny_gemm.cute_launch", later, raising=False)
    operator = object.__new__(skinny.SkinnyGemm)
    operator.spec, operator._device = SkinnyGemmSpec(7168, 1536), HOPPER
    operator._provider, operator._choices = dispatch.AUTO, {}
    operator.prepare(64)
    plan = skinny.plan_of(operator.spec, HOPPER)
    taken = [rows for rows in range(1, 65) if operator.choice(rows).variant == "cute"]
    assert taken
    assert {(1536, plan, plan.bucket(rows), "bf16", "sm_90a") for rows in taken} == later.kernels


def test_after_prepare_no_call_of_attn_res_compiles(monkeypatch):
    later = CompiledLater()
    monkeypatch.setitem(sys.modules, "runtime.kernels.attn_res.cute_launch", later)
    monkeypatch.setattr("runtime.kernels.attn_res.cute_launch", later, raising=False)
    operator = object.__new__(attn_res.AttnRes)
    operator.spec, operator._device = ATTN_RES, HOPPER
    operator.choice = dispatch.Choice("attn_res", "cute", "")
    operator.prepare(64)
    for tokens in range(1, 65):
        launch = attn_res.launch_shape(ATTN_RES, tokens, HOPPER)
        assert (launch.cluster, launch.resident) in {key[6:8] for key in later.kernels}


@pytest.mark.parametrize("width", [384, 192, 3072])
def test_after_prepare_no_call_of_the_experts_compiles(width, monkeypatch):
    later = CompiledLater()
    monkeypatch.setitem(sys.modules, "runtime.kernels.moe_experts.cute_launch", later)
    monkeypatch.setattr("runtime.kernels.moe_experts.cute_launch", later, raising=False)
    operator = object.__new__(moe_experts.MoeExperts)
    operator.spec, operator._device = MoeExpertsSpec(width=width), HOPPER
    operator.choice = dispatch.Choice("moe_experts", "cute", "")
    operator.prepare(64)
    for tokens in range(1, 65):
        launch = operator.launch(tokens)
        for shape in (launch.gate_up, launch.down):
            assert (operator.spec, shape, "sm_90a") in later.kernels


@pytest.mark.usefixtures("everything_installed")
def test_after_prepare_no_call_of_the_routing_compiles(monkeypatch):
    later = CompiledLater()
    monkeypatch.setitem(sys.modules, "runtime.kernels.moe_route.cute_launch", later)
    monkeypatch.setattr("runtime.kernels.moe_route.cute_launch", later, raising=False)
    operator = object.__new__(moe_route.MoeRoute)
    operator.spec, operator._device = MoeRouteSpec(), HOPPER
    operator._provider, operator._choices = "cute", {}
    operator.prepare(64)
    wanted = {
        (operator.spec, tokens, masked, "sm_90a") for tokens in range(1, 65) for masked in (False, True)
    }
    assert later.kernels == wanted


@pytest.mark.usefixtures("everything_installed")
def test_scales_that_the_kernel_cannot_apply_are_a_reason():
    spec = MoeExpertsSpec()
    with pytest.raises(ValueError, match="an E8M0 scale is 200"):
        moe_experts.choose_moe_experts(spec, ["an E8M0 scale is 200, above 128"], HOPPER, "cute")
    choice = moe_experts.choose_moe_experts(spec, ["an E8M0 scale is 200, above 128"], HOPPER)
    assert choice.variant == "triton" and "200, above 128" in choice.reason
