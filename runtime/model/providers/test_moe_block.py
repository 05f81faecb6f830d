"""The feed-forward slot of a MoE layer, its wiring against plain NumPy in FP64, on the CPU.

Routing and experts are the Triton kernels in the interpreter; the projections, which have none, are stood in for.
Run in a process of its own: the interpreter must be chosen before a kernel's module is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="no Triton here: `make check-kernels`")

pytestmark = pytest.mark.compilers
ROOT = Path(__file__).parents[3]
EXPERTS, TOP_K, HIDDEN, LATENT, WIDTH, SHARED, TOKENS = 6, 2, 256, 128, 64, 64, 5
SCALING, NORM_EPS, BETA, LINEAR_BETA = 2.5, 0.1, 4.0, 25.0
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
PADDING = torch.tensor([False, False, True, False, False])


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_block_is_the_formula_on_one_rank_and_over_a_group(ranks):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "runtime.model.providers.test_moe_block", str(ranks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


class Projection:
    """In place of ``SkinnyGemm``: FP64 product, the epilogue of its spec."""

    def __init__(self, spec, weight):
        self.weight, self.epilogue = weight.double(), spec.epilogue

    def __call__(self, x, out):
        y = x.double() @ self.weight.T
        if self.epilogue == "situ":
            y = torch.tensor(situ(*np.split(y.numpy(), 2, -1)))
        return out.copy_(y)


def half(rows, columns):
    """A random BF16 matrix that keeps the scale of what it is applied to."""
    return (torch.randn(rows, columns) * columns**-0.5).bfloat16()


def mxfp4(rows, columns):
    """Random experts as the checkpoint has them, and their values [E, rows, columns]."""
    codes = torch.randint(0, 256, (EXPERTS, rows, columns // 2), dtype=torch.uint8)
    scales = torch.randint(119, 123, (EXPERTS, rows, columns // 32), dtype=torch.uint8)
    pairs = np.stack([codes.numpy() & 15, codes.numpy() >> 4], -1).reshape(EXPERTS, rows, columns)
    return (codes, scales), E2M1[pairs] * np.repeat(2.0 ** (scales.numpy().astype(float) - 127), 32, -1)


def f64(x):
    return x.double().numpy()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def situ(gate, up):
    return BETA * np.tanh(gate / BETA) * sigmoid(gate) * LINEAR_BETA * np.tanh(up / LINEAR_BETA)


def rms_norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + NORM_EPS) * weight


def formula(w, w13, w2, norm, x, ranks):
    """The block's result [T, D]; `ranks` equal ranks are summed before the norm."""
    scores = sigmoid(x @ f64(w.router).T)
    latent, routed = x @ f64(w.down).T, np.zeros((TOKENS, LATENT))
    for token in np.flatnonzero(~PADDING.numpy()):
        chosen = np.argsort(-(scores[token] + f64(w.bias)))[:TOP_K]
        for expert in chosen:
            gate, up = np.split(w13[expert] @ latent[token], 2)
            share = scores[token, expert] / scores[token, chosen].sum() * SCALING
            routed[token] += share * (w2[expert] @ situ(gate, up))
    shared = situ(*np.split(x @ f64(w.shared_gate_up).T, 2, -1)) @ f64(w.shared_down).T
    return rms_norm(ranks * routed, f64(norm)) @ f64(w.up).T + ranks * shared


def main(ranks):
    """Compare; exits with an error that names what differs."""
    from runtime.kernels.common.launch.overlap import Overlap
    from runtime.kernels.moe_experts.layout import pack_humming
    from runtime.kernels.moe_experts.spec import MoeExpertsSpec
    from runtime.model.providers import moe

    torch.Tensor.is_cuda = property(lambda _: True)  # the interpreter's tensors live on the CPU
    moe.SkinnyGemm = Projection
    torch.manual_seed(0)
    norm = torch.rand(LATENT) + 0.5
    (c13, w13), (c2, w2) = mxfp4(2 * WIDTH, LATENT), mxfp4(LATENT, WIDTH)
    w = moe.MoeWeights(
        router=half(EXPERTS, HIDDEN),
        bias=torch.randn(EXPERTS) * 0.5,
        shared_gate_up=half(2 * SHARED, HIDDEN),
        shared_down=half(HIDDEN, SHARED),
        down=half(LATENT, HIDDEN),
        up=half(HIDDEN, LATENT),
        experts=(*pack_humming(*c13), *pack_humming(*c2)),
        spec=MoeExpertsSpec(LATENT, WIDTH, EXPERTS, TOP_K),
        renormalize=True,
        scaling=SCALING,
        norm=lambda y: torch.tensor(rms_norm(f64(y), f64(norm))).bfloat16(),
    )
    x = torch.randn(TOKENS, HIDDEN).bfloat16()
    block = moe.MoeBlock(w, Overlap(), None if ranks == 1 else lambda y: ranks * y, provider="triton")
    out = f64(block(x, block.buffers(8).head(TOKENS), PADDING))
    expected = formula(w, w13, w2, norm, f64(x), ranks)
    error = np.linalg.norm(out - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    # BF16 between the operators, cut off instead of rounded in the interpreter
    assert (error < 0.02).all(), error


if __name__ == "__main__":
    main(int(sys.argv[1]))
