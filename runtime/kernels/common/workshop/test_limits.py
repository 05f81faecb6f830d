"""The audit's limits, each by itself, on kernels as the disassembler describes them: no compiler needed."""

import pytest

from runtime.kernels.common.workshop import audit as module
from runtime.kernels.common.workshop.audit import Limits, audit
from runtime.kernels.common.workshop.sass import Kernel


@pytest.fixture
def problems(monkeypatch):
    """What the audit says about one kernel with these resources."""

    def found(limits, *, registers=64, threads=128, stack_bytes=0):
        kernel = Kernel("k", (), (), 0x210, threads, registers, stack_bytes, 0)
        monkeypatch.setattr(module, "disassemble", lambda image: [kernel])
        return "\n".join(audit(b"", {}, pdl=False, limits=limits))

    return found


def test_a_kernel_within_its_limits_passes(problems):
    assert problems(Limits(registers=64)) == ""
    assert problems(None) == ""


@pytest.mark.parametrize(("stack", "limit", "ok"), [(0, 0, True), (8, 0, False), (8, 8, True), (9, 8, False)])
def test_spills_to_the_stack_are_caught_beyond_the_limit(problems, stack, limit, ok):
    text = problems(Limits(stack_bytes=limit), stack_bytes=stack)
    assert text == ("" if ok else f"k: {stack} bytes of stack, limit {limit}")


def test_without_limits_no_stack_is_allowed(problems):
    assert "8 bytes of stack, limit 0" in problems(None, stack_bytes=8)


@pytest.mark.parametrize(("registers", "limit", "ok"), [(96, 96, True), (97, 96, False), (255, 255, True)])
def test_registers_are_caught_beyond_the_limit(problems, registers, limit, ok):
    text = problems(Limits(registers=limit), registers=registers)
    assert text == ("" if ok else f"k: {registers} registers, limit {limit}")


@pytest.mark.parametrize(
    ("registers", "threads", "ok"), [(64, 1024, True), (65, 1024, False), (255, None, True)]
)
def test_a_block_that_no_multiprocessor_can_hold_is_caught(problems, registers, threads, ok):
    """65,536 registers a multiprocessor: ptxas allows what then fails to launch."""
    text = problems(Limits(), registers=registers, threads=threads)
    assert text == ("" if ok else f"k: {registers} registers x {threads} threads exceed a multiprocessor")
