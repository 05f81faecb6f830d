"""The CPU simulator of device code: tensor cores by layout, late copies, what it must refuse."""

import numpy as np
import pytest
import torch

from runtime.kernels.common.workshop import simt
from runtime.kernels.common.workshop.simt import Cta, load_kernel
from runtime.kernels.common.workshop.simt_memory import Tensor
from runtime.kernels.common.workshop.simt_warp import multiply_tiles, pack, unpack

KERNEL = """
from cutlass import Float32, Int32, cute
import cutlass
from runtime.kernels.common.launch.cute_ops import copy_bulk, load_activation

class Kernel:
    @cute.kernel
    def kernel(self, x, out):
        thread, _, _ = cute.arch.thread_idx()
        lane = thread % WARP
        smem = cutlass.utils.SmemAllocator()
        rows = smem.allocate_tensor(Float32, cute.make_layout(128), 16).iterator
        full = smem.allocate_tensor(cutlass.Uint64, cute.make_layout(1), 8).iterator
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
        cute.arch.sync_threads()
        {wait}
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, {expected})
            copy_bulk(rows, x.iterator, 512, full)
        {arrival}
        words = load_shared_word(rows + thread)
        total = self._sum(as_float(words))
        {load}
        store_floats(out.iterator + thread{beyond}, (total,))

    @cute.jit
    def _sum(self, value):
        return warp_sum(value)
"""
GOOD = {
    "wait": "cute.arch.griddepcontrol_wait()",
    "expected": "512",
    "arrival": "cute.arch.mbarrier_wait(full, 0)",
    "load": "load_activation(x.iterator + thread // 4 * 4)",
    "beyond": "",
}


def run(tmp_path, **changes):
    path = tmp_path / "cute_test.py"
    path.write_text(KERNEL.format(**{**GOOD, **changes}))
    x, out = torch.arange(128.0), torch.full((128,), float("nan"))
    kernel = load_kernel([path], "Kernel")()
    Cta(128, 0, 1, 4096).run(kernel.kernel, Tensor(x, "x"), Tensor(out, "out"))
    return x, out


def test_a_kernel_with_copies_barriers_and_a_warp_sum(tmp_path):
    x, out = run(tmp_path)
    assert torch.equal(out, x.view(4, 32).sum(1, keepdim=True).expand(4, 32).flatten())


def test_a_copy_that_nobody_waits_for_is_seen(tmp_path):
    """Shared memory is NaN until the copy comes."""
    with pytest.raises(AssertionError, match="on its way"):
        run(tmp_path, arrival="pass")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expected": "528"}, "wait for ever"),
        ({"arrival": "cute.arch.mbarrier_wait(full, 0)\n        if lane == 3: cute.arch.sync_warp()"}, "wait"),
        ({"wait": "pass"}, "before the dependency wait"),
        ({"load": "load_activation(x.iterator + thread)"}, "not aligned"),
        ({"beyond": " + 1"}, "out: 4 bytes at 512 of 512"),
    ],
    ids=["bytes that never come", "a lane alone", "no wait", "alignment", "bounds"],
)  # fmt: skip
def test_what_would_hang_or_fault_on_a_gpu_is_an_error(tmp_path, change, message):
    with pytest.raises(AssertionError, match=message):
        run(tmp_path, **change)


def test_the_tensor_core_multiplies_by_the_layout_of_the_manual():
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, shape).astype(float) for shape in ((16, 16), (16, 8), (16, 8)))
    lanes = []
    for lane in range(32):
        g, t = lane // 4, lane % 4
        rows = [(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]
        words_a = pack(tuple(a[r, k + e] for r, k in rows for e in (0, 1)))
        words_b = pack(tuple(b[k + e, g] for k in (2 * t, 2 * t + 8) for e in (0, 1)))
        lanes.append((words_a, words_b, tuple(c[g + 8 * h, 2 * t + e] for h in (0, 1) for e in (0, 1))))
    exact = c + a @ b
    for lane, sums in enumerate(multiply_tiles(lanes)):
        g, t = lane // 4, lane % 4
        assert sums == tuple(exact[g + 8 * h, 2 * t + e] for h in (0, 1) for e in (0, 1))


def test_bf16_is_rounded_to_nearest_even():
    assert unpack(pack((1 + 2**-8, 1 + 3 * 2**-8))) == (1.0, 1 + 2**-6)


def test_every_stand_in_stands_for_a_building_block():
    """The names of the operations are those of the device code's modules."""
    from pathlib import Path

    folder = Path(simt.__file__).parents[1] / "launch"
    text = (folder / "cute_ops.py").read_text() + (folder / "cute_matrices.py").read_text()
    dsl = {"cutlass", "cute", "BFloat16", "Float32", "Int32", "Int64", "WARP"}
    assert [name for name in set(simt._STAND_INS) - dsl if f"def {name}(" not in text] == []
