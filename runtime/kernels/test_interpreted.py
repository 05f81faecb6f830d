"""The Triton kernels, run by Triton's interpreter on the CPU, equal the references.

FP32 throughout: the interpreter truncates to BF16 where the GPU rounds to nearest. The constants are large and differ
from each other and from K3's, so that each is heard.

The interpreter must be chosen before a kernel's module is imported, so each case runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="no Triton here: `make check-kernels`")

pytestmark = pytest.mark.compilers

ROOT = Path(__file__).parents[2]

ATTN_RES = """
import torch
from runtime.kernels.attn_res import attn_res
from runtime.kernels.attn_res.triton_kernel import run

torch.manual_seed(0)
D = 200  # not a power of two
for num_blocks, write, has_delta, has_norm in [(0, 0, False, True), (1, None, True, True), (3, 3, True, False)]:
    prefix, delta = (torch.randn(3, D) for _ in range(2))
    blocks = torch.randn(3, 5, D)
    blocks[:, num_blocks:] = float("nan")
    weights = {"score_norm": torch.rand(D), "score_vec": torch.randn(D) / 8}
    site = {"num_blocks": num_blocks, "write": write, "eps": 0.3, "out_eps": 0.02, **weights}
    site["out_norm"] = torch.rand(D) if has_norm else None
    expected = attn_res(prefix, delta if has_delta else None, blocks, **site)
    out = torch.full_like(prefix, float("nan"))
    run(prefix, delta if has_delta else None, blocks, out, pdl=False, **site)
    assert torch.equal(prefix, expected.prefix)
    assert torch.equal(blocks.nan_to_num(7.0), expected.blocks.nan_to_num(7.0))
    torch.testing.assert_close(out, expected.out, rtol=1e-5, atol=1e-5)
"""

KDA_DECODE = """
import torch
from runtime.kernels.kda.composed import kda_decode_composed
from runtime.kernels.kda.triton_kernel import run

torch.manual_seed(0)
H, K = 2, 128
for tokens in (1, 3):
    requests, width = 3, H * K
    slots = torch.randperm(requests * tokens)[: requests * tokens].view(requests, tokens).int() + 1
    slots[1] = 0  # padding
    accepted = torch.randint(1, tokens + 1, (requests,)).int() if tokens > 1 else None
    projected = torch.randn(requests * tokens, 4 * width + K + H)
    weights = (
        (torch.randn(width, K) / 11), torch.randn(3 * width, 4) * 0.4, torch.randn(H) * 0.3,
        torch.randn(H, K) * 0.3, torch.rand(K) + 0.5,
    )
    pages = requests * tokens + 1
    conv_state = torch.randn(pages, tokens + 2, 3 * width)
    state = torch.randn(pages, H, K, K)
    out = torch.full((requests * tokens, width), float("nan"))
    expected = [t.clone() for t in (conv_state, state, out)]
    numbers = {"lower_bound": -3.0, "eps": 0.02}
    kda_decode_composed(projected, *weights, expected[0], expected[1], slots, accepted, expected[2], **numbers)
    counts = slots[:, 0] if accepted is None else accepted
    run(projected, weights, conv_state, state, slots, counts, out, pdl=False, **numbers)
    assert torch.equal(conv_state, expected[0])
    torch.testing.assert_close(state, expected[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, expected[2], rtol=1e-4, atol=1e-5)
"""


@pytest.mark.parametrize("script", [ATTN_RES, KDA_DECODE], ids=["attn_res", "kda_decode"])
def test_a_triton_kernel_equals_the_reference_in_the_interpreter(script):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
