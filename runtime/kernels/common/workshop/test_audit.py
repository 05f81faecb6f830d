"""The audit lets right kernels pass and catches each kind of wrong one, on every target.

The probe kernel adds a weight to an activation. Its `fault` breaks one rule at a time.
"""

import functools

import pytest

cutlass = pytest.importorskip("cutlass", reason="no CuTe DSL here: `make check-kernels`")

import torch  # noqa: E402
from cutlass import Float32, Int32, cute  # noqa: E402
from cutlass.cutlass_dsl import dsl_user_op  # noqa: E402

from runtime.kernels.common.launch.cute_compile import compile_image, symbol, tensor  # noqa: E402
from runtime.kernels.common.launch.cute_ops import load_int, load_state, ptx, store_floats  # noqa: E402
from runtime.kernels.common.workshop.audit import Limits, audit  # noqa: E402
from runtime.kernels.common.workshop.builds import TARGETS  # noqa: E402
from runtime.kernels.common.workshop.sass import disassemble  # noqa: E402

pytestmark = pytest.mark.compilers
ROLES = {0: "activation", 1: "weight", 2: "table", 3: "output"}


@dsl_user_op
def load_noncoherent(pointer, *, loc=None, ip=None):
    """What a careless kernel writes: a pure non-coherent load."""
    return ptx("ld.global.nc.f32 $0, [$1];", "=f,l", (pointer,), Float32, pure=True, loc=loc, ip=ip)


@dsl_user_op
def load_strong(pointer, *, loc=None, ip=None):
    """A mailbox poll that is coherent at system scope."""
    code = "ld.relaxed.sys.global.f32 $0, [$1];"
    return ptx(code, "=f,l,~{memory}", (pointer,), Float32, loc=loc, ip=ip)


class Probe:
    """out[i] = x[i] + w[i], optionally through an index; `fault` names the rule to break."""

    def __init__(self, fault=None):
        self.fault = fault

    @cute.jit
    def __call__(self, x, w, index, out, stream):
        self.kernel(x, w, index, out).launch(grid=(4, 1, 1), block=(128, 1, 1), stream=stream, use_pdl=True)

    @cute.kernel
    def kernel(self, x: cute.Tensor, w: cute.Tensor, index: cute.Tensor, out: cute.Tensor):
        fault: cutlass.Constexpr = self.fault
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        i = block * 128 + thread
        at = load_int(index.iterator + i)
        weight = load_state(w.iterator + i, 1)[0]
        if cutlass.const_expr(fault == "early load"):
            weight += load_state(x.iterator + i, 1)[0]
        if cutlass.const_expr(fault == "early store"):
            store_floats(out.iterator + i, (weight,))
        if cutlass.const_expr(fault == "early trigger"):
            cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(fault == "wait on one path"):
            if at > 0:
                cute.arch.griddepcontrol_wait()
        elif cutlass.const_expr(fault != "no wait"):
            cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(fault == "non-coherent"):
            value = Float32(0)
            for step in cutlass.range(4, unroll_full=True):
                value += load_noncoherent(x.iterator + i + step * 512)
        elif cutlass.const_expr(fault == "unknown provenance"):
            address = load_int(index.iterator + i + 1)
            value = load_state(
                cute.make_ptr(Float32, cutlass.Int64(address) * 4096, cute.AddressSpace.gmem), 1
            )[0]
        elif cutlass.const_expr(fault == "strong"):
            value = load_strong(x.iterator + i)
        else:
            value = load_state(x.iterator + at, 1)[0]
        if cutlass.const_expr(fault == "store to a weight"):
            store_floats(w.iterator + i, (value,))
        cute.arch.griddepcontrol_launch_dependents()
        store_floats(out.iterator + i + Int32(0), (value + weight,))


@functools.cache
def image(fault, target):
    row, index = tensor((symbol(),), (1,), torch.float32), tensor((symbol(),), (1,), torch.int32)
    return compile_image(Probe(fault), row, row, index, row, arch=target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_right_kernel_passes(target):
    assert audit(image(None, target), ROLES) == []


@pytest.mark.parametrize("target", TARGETS)
def test_an_activation_through_the_noncoherent_path_is_caught(target):
    """The fault that started this: after the wait in the source, before it in the machine code."""
    code = image("non-coherent", target)
    order = [i.base for i in disassemble(code)[0].code if i.base == "ACQBULK" or ".CONSTANT" in i.opcode]
    assert order.index("LDG") < order.index("ACQBULK"), (
        "ptxas no longer moves it: the probe has lost its point"
    )
    problems = "\n".join(audit(code, ROLES))
    assert "non-coherent load of activation" in problems
    assert "load of activation before the dependency wait" in problems


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("early load", "load of activation before the dependency wait"),
        ("early store", "store before the dependency wait"),
        ("early trigger", "triggers dependents before the dependency wait"),
        ("wait on one path", "load of activation before the dependency wait"),
        ("wait on one path", "exit without the dependency wait"),
        ("no wait", "no dependency wait"),
        ("unknown provenance", "load of unknown provenance"),
        ("store to a weight", "store to weight"),
    ],
)
def test_a_broken_rule_is_caught(fault, expected, target):
    assert expected in "\n".join(audit(image(fault, target), ROLES))


@pytest.mark.parametrize("target", TARGETS)
def test_a_mailbox_must_be_polled_strongly(target):
    roles = ROLES | {0: "mailbox"}
    assert "weak load of mailbox" not in "\n".join(audit(image("strong", target), roles))
    assert "weak load of a mailbox" in "\n".join(audit(image(None, target), roles))


def test_settled_state_may_be_read_early_and_other_state_may_not():
    roles = ROLES | {0: "state"}
    code = image("early load", "sm_90a")
    assert audit(code, roles, settled=True) == []
    assert "load of state before the dependency wait" in "\n".join(audit(code, roles))


def test_an_early_trigger_passes_only_if_the_build_declares_it():
    code = image("early trigger", "sm_90a")
    assert audit(code, ROLES, early_trigger=True) == []
    assert "triggers dependents" in "\n".join(audit(code, ROLES))


def test_without_programmatic_launch_nothing_needs_to_wait():
    assert audit(image("no wait", "sm_90a"), ROLES, pdl=False) == []


def test_a_parameter_without_a_role_is_reported():
    assert "parameter 3 has no role" in "\n".join(
        audit(image(None, "sm_90a"), {0: "activation", 1: "weight", 2: "table"})
    )


def test_limits_and_required_instructions_are_checked():
    code = image(None, "sm_90a")
    assert "registers, limit 1" in "\n".join(audit(code, ROLES, limits=Limits(registers=1)))
    assert "no HMMA instruction" in "\n".join(audit(code, ROLES, limits=Limits(must_contain=("HMMA", "LDG"))))
