"""Which launch each call site takes, without a GPU: a table over batch, heads, query length and promises."""

import pytest

from runtime.kernels.attn_res import dispatch as attn_res
from runtime.kernels.attn_res.spec import AttnResSpec
from runtime.kernels.attn_res.spec import unsupported as attn_res_unsupported
from runtime.kernels.common.launch import dispatch
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.kda import dispatch as kda
from runtime.kernels.kda.spec import KdaDecodeSpec
from runtime.kernels.kda.spec import unsupported as kda_unsupported
from runtime.kernels.skinny_gemm.dispatch import choose_skinny_gemm
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec

ATTN_RES = AttnResSpec(7168, 8, None, True, True, 1e-5, 1e-5)
PROMISES = [Overlap(), Overlap(True, False), Overlap(False, True), Overlap(True, True)]


@pytest.mark.parametrize(
    ("heads", "requests", "tokens", "shape"),
    [
        (12, 1, 1, (4, 2, False)),
        (6, 1, 1, (2, 2, False)),
        (6, 4, 1, (4, 2, False)),
        (12, 4, 1, (2, 2, False)),
        (12, 8, 1, (2, 2, False)),
        (12, 16, 1, ("stream", 11)),
        (12, 64, 1, ("stream", 11)),
        (6, 64, 1, (2, 2, False)),
        (96, 64, 1, (1, 2, False)),  # one lane per head would have to walk over more requests than it can
        (12, 2, 8, (4, 1, False)),
        (12, 8, 8, (2, 2, False)),
        (6, 16, 3, (2, 2, False)),
    ],
)
def test_kda_takes_the_measured_shape(heads, requests, tokens, shape):
    assert kda.launch(KdaDecodeSpec(heads, tokens), requests, 132)[0] == shape


@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.parametrize("requests", [1, 2, 8, 16, 24, 64])
def test_kda_never_uses_a_promise_that_the_call_site_does_not_make(requests, tokens, promise):
    _, used = kda.launch(KdaDecodeSpec(12, tokens, overlap=promise), requests, 132)
    assert used.settled <= promise.settled and used.early_trigger <= promise.early_trigger


def test_kda_does_not_stream_caches_that_the_copy_engine_cannot_read():
    shape, used = kda.launch(KdaDecodeSpec(12, overlap=Overlap(True, True)), 64, 132, streamable=False)
    assert shape == (1, 2, False) and used == Overlap()


@pytest.mark.parametrize("tokens", [1, 8, 9, 16, 17, 33, 64, 1000])
@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("hidden", [7168, 4096, 2048])
def test_attn_res_clusters_divide_the_hidden_size_into_whole_warps(hidden, promise, tokens):
    spec = AttnResSpec(hidden, 8, None, True, True, 1e-5, 1e-5, overlap=promise)
    cluster, resident = attn_res.launch_shape(spec, tokens)
    assert hidden % (cluster * 256) == 0 and 1 <= resident <= 8
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
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_automatic_choice_takes_a_kernel_only_where_it_has_run(arch):
    choosers = (
        lambda requested: attn_res.choose_attn_res(ATTN_RES, arch, requested),
        lambda requested: kda.choose_kda_decode(KdaDecodeSpec(12), arch, requested),
        lambda requested: choose_skinny_gemm(SkinnyGemmSpec(6288, 7168), 8, arch, requested),
    )
    for choose in choosers:
        choice = choose(dispatch.AUTO)
        assert (choice.variant == "cute") == (arch == "sm_90a")
        assert arch == "sm_90a" or f"never run on {arch}" in choice.reason
        assert choose("cute").variant == "cute"
