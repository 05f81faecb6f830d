"""Rules that a compiled kernel must keep, checked on its machine code by the roles of its parameters.

Why machine code: a load of an activation through the non-coherent path, written after the dependency wait, is
after it in PTX and before it in the code that ptxas emits. No test of outputs finds that reliably.

  weight      constant while the model runs: may be read at any time, also non-coherently
  table       written by the host before the launch: may be read at any time, coherently
  activation  written by the preceding kernels of the step: read only after the dependency wait
  state       kept between steps, updated in place: read after the wait unless the build declares it settled
  mailbox     written by other GPUs or CTAs while the kernel runs: every read is strong
  output      written by this kernel only
  scalar      never an address
"""

from dataclasses import dataclass
from typing import Literal

from runtime.kernels.common.workshop.provenance import Access, Flow, analyse
from runtime.kernels.common.workshop.sass import Kernel, disassemble

Role = Literal["weight", "table", "activation", "state", "mailbox", "output", "scalar"]
_ANY_TIME = frozenset({"weight", "table"})


@dataclass(frozen=True)
class Limits:
    """Most resources a build may use, and opcodes that its fast path needs (prefixes, e.g. "HMMA")."""

    registers: int = 255
    stack_bytes: int = 0
    must_contain: tuple[str, ...] = ()


def audit(
    image: bytes,
    roles: dict[int, Role],
    *,
    settled: bool = False,
    early_trigger: bool = False,
    pdl: bool = True,
    limits: Limits | None = None,
) -> list[str]:
    """Return every violation in a cubin as one line each; an empty list means that it passes.

    roles: by parameter ordinal; every parameter needs one. settled, early_trigger: what `overlap.Overlap` allows.
    pdl: whether the kernel is launched with programmatic dependent launch; then it must wait on every path, and
    trigger its dependents only after that (so whatever starts after it may rely on all kernels before it).
    """
    problems = []
    for kernel in disassemble(image):
        found = _missing_roles(kernel, roles) or _check(analyse(kernel), roles, settled, early_trigger, pdl)
        found += _check_limits(kernel, limits or Limits())
        problems += [f"{kernel.name[:48]}: {text}" for text in found]
    return problems


def _missing_roles(kernel: Kernel, roles) -> list[str]:
    return [f"parameter {p.ordinal} has no role" for p in kernel.parameters if p.ordinal not in roles]


def _check(flow: Flow, roles, settled, early_trigger, pdl) -> list[str]:
    problems = []
    for access in flow.accesses:
        names = {roles[o] for o in access.ordinals} - {"scalar"}
        reasons = _check_load(access, names, settled, pdl) if access.loads else []
        if access.stores:
            reasons += _check_store(access, names, pdl)
        problems += [f"{access.instruction.text}: {reason}" for reason in reasons]
    if pdl:
        if not flow.waits:
            problems.append("no dependency wait in a kernel for programmatic dependent launch")
        problems += [f"{i.text}: exit without the dependency wait" for i in flow.exits_unwaited if flow.waits]
        if not early_trigger:
            problems += [
                f"{i.text}: triggers dependents before the dependency wait" for i in flow.early_triggers
            ]
    return problems


def _check_load(access: Access, names: set[str], settled, pdl) -> list[str]:
    opcode = access.instruction.opcode
    if not names:
        return ["load of unknown provenance"]
    reasons = []
    if ".CONSTANT" in opcode and names != {"weight"}:
        reasons.append(f"non-coherent load of {_list(names)}")
    if "output" in names and not access.stores:
        reasons.append("load of an output")
    if "mailbox" in names and "STRONG" not in opcode and not access.stores:
        reasons.append("weak load of a mailbox")
    early = names - _ANY_TIME - ({"state"} if settled else set())
    if pdl and not access.waited and early:
        reasons.append(f"load of {_list(early)} before the dependency wait")
    return reasons


def _check_store(access: Access, names: set[str], pdl) -> list[str]:
    if not names:
        return ["store of unknown provenance"]
    reasons = []
    if names & (_ANY_TIME | {"activation"}):
        reasons.append(f"store to {_list(names)}")
    if pdl and not access.waited:
        reasons.append("store before the dependency wait")
    return reasons


def _check_limits(kernel: Kernel, limits: Limits) -> list[str]:
    problems = []
    if kernel.registers > limits.registers:
        problems.append(f"{kernel.registers} registers, limit {limits.registers}")
    if kernel.threads and kernel.registers * kernel.threads > 65536:
        problems.append(f"{kernel.registers} registers x {kernel.threads} threads exceed a multiprocessor")
    if kernel.stack_bytes > limits.stack_bytes:
        problems.append(f"{kernel.stack_bytes} bytes of stack, limit {limits.stack_bytes}")
    missing = [p for p in limits.must_contain if not any(i.opcode.startswith(p) for i in kernel.code)]
    return problems + [f"no {prefix} instruction" for prefix in missing]


def _list(names) -> str:
    return " or ".join(sorted(names))
