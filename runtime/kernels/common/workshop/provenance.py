"""Data flow over a kernel's machine code: where addresses come from, and what has happened before an access.

Two facts are propagated to a fixed point. Provenance maps a register to the kernel parameters that its value was
computed from; a value that comes out of memory, another lane or floating-point arithmetic has none. And two flags
say whether the dependency wait (`ACQBULK`), and the trigger that starts dependents (`PREEXIT`), have run on every,
respectively on any, path.
"""

import heapq
import re
from dataclasses import dataclass
from typing import Any

from runtime.kernels.common.workshop.sass import Instruction, Kernel

_CONSTANT = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]")
# constant base of the parameters -> where the constant bank keeps their address
_PARAMETER_POINTER = {0x210: 0x198, 0x380: 0x348}
LOADS = ("LDG", "LDGSTS", "UBLKCP", "UBLKPF", "UTMALDG", "UTMAPF", "LD", "ATOMG", "ATOM")
STORES = ("STG", "ST", "UTMASTG", "UBLKRED", "UTMAREDG", "ATOMG", "ATOM", "RED", "REDG")
_FORGETS = (
    *LOADS,
    "LDS",
    "LDSM",
    "SHFL",
    "S2R",
    "S2UR",
    "CS2R",
    "MUFU",
    "HMMA",
    "IMMA",
    "QMMA",
    "REDUX",
)
_FLOAT = ("F", "H", "D", "I2F", "F2F")

Origin = tuple[str, int]  # ("parameter", ordinal) or ("address", byte offset in the parameter space)


@dataclass(frozen=True)
class Access:
    """One global-memory access: parameters its address comes from, and whether the wait has run on every path."""

    instruction: Instruction
    ordinals: frozenset[int]
    waited: bool

    @property
    def loads(self) -> bool:
        """Whether it reads global memory."""
        return self.instruction.base in LOADS

    @property
    def stores(self) -> bool:
        """Whether it writes global memory."""
        return self.instruction.base in STORES


@dataclass(frozen=True)
class Flow:
    """Result of the analysis of one kernel.

    waits: whether there is a dependency wait at all. exits_unwaited: exits that some path reaches without it.
    early_triggers: triggers that some path reaches before the wait.
    """

    accesses: tuple[Access, ...]
    waits: bool
    exits_unwaited: tuple[Instruction, ...]
    early_triggers: tuple[Instruction, ...]


def analyse(kernel: Kernel) -> Flow:
    """Run the data flow over one kernel."""
    following = kernel.successors()
    live = _liveness(kernel, following)
    states = _propagate(kernel, following, live)
    accesses, exits, triggers = [], [], []
    for instruction, state in zip(kernel.code, states, strict=True):
        if state is None:  # unreachable padding
            continue
        origins, waited = state
        if instruction.base in LOADS or instruction.base in STORES:
            found = _origins(kernel, instruction, origins, instruction.address_registers())
            ordinals = frozenset(o for o in (_ordinal(kernel, origin) for origin in found) if o is not None)
            accesses.append(Access(instruction, ordinals, waited))
        elif instruction.base == "EXIT" and not waited:
            exits.append(instruction)
        elif instruction.base == "PREEXIT" and not waited:
            triggers.append(instruction)
    waits = any(i.base == "ACQBULK" for i in kernel.code)
    return Flow(tuple(accesses), waits, tuple(exits), tuple(triggers))


def _ordinal(kernel, origin):
    kind, value = origin
    return value if kind == "parameter" else kernel.ordinal_at(value)


def _origins(kernel: Kernel, instruction: Instruction, known, names) -> frozenset[Origin]:
    """Origins of the named registers and of the constants that the instruction reads."""
    found = _constants(kernel, instruction)
    for name in names:
        if name in known:
            found = found | known[name]
    return found


def _constants(kernel: Kernel, instruction: Instruction) -> frozenset[Origin]:
    """Origins of the parameters that the instruction reads from the constant bank."""
    found = set()
    for operand in instruction.operands:
        if "c[0x0]" not in operand:
            continue
        for text in _CONSTANT.findall(operand):
            constant = int(text, 16)
            if constant == _PARAMETER_POINTER.get(kernel.constant_base):
                found.add(("address", 0))
            elif (ordinal := kernel.ordinal_at(constant - kernel.constant_base)) is not None:
                found.add(("parameter", ordinal))
    return frozenset(found)


def _value(kernel, instruction, known):
    """Origins of the value that an instruction computes."""
    if instruction.base in _FORGETS or (instruction.base.startswith(_FLOAT) and instruction.base != "FLO"):
        return frozenset()
    origins = _origins(kernel, instruction, known, instruction.sources)
    if instruction.base in (
        "UIADD3",
        "IADD3",
        "VIADD",
    ):  # address of a parameter + immediate: a place among them
        step = sum(int(o, 16) for o in instruction.operands if re.fullmatch(r"-?0x[0-9a-f]+", o))
        origins = frozenset((kind, value + step if kind == "address" else value) for kind, value in origins)
    return origins


def _liveness(kernel, following):
    """Bit masks of the registers that may still be read after each instruction: stale values are not carried on."""
    bits: dict[str, int] = {}

    def mask(names):
        total = 0
        for name in names:
            total |= 1 << bits.setdefault(name, len(bits))
        return total

    defines = [0 if i.guard else mask(i.results) for i in kernel.code]
    reads = [mask(i.sources) for i in kernel.code]
    before, after = [0] * len(kernel.code), [0] * len(kernel.code)
    changed = True
    while changed:
        changed = False
        for i in range(len(kernel.code) - 1, -1, -1):
            out = 0
            for target in following[i]:
                out |= before[target]
            needed = (out & ~defines[i]) | reads[i]
            after[i] = out
            if needed != before[i]:
                before[i], changed = needed, True
    return [{name for name, bit in bits.items() if live >> bit & 1} for live in after]


def _propagate(kernel, following, live):
    """State before each instruction: (register -> origins, wait done on every path), or None if unreachable."""
    states: list[Any] = [None] * len(kernel.code)
    if not states:
        return states
    states[0] = ({}, False)
    work, queued = [0], {0}
    while work:
        i = heapq.heappop(work)  # in program order, so that most instructions are visited once
        queued.discard(i)
        known, waited = states[i]
        instruction = kernel.code[i]
        waited = waited or (instruction.base == "ACQBULK" and instruction.guard is None)
        known = _after(kernel, i, known, live[i])
        for target in following[i]:
            joined = _join(states[target], known, waited)
            if joined != states[target]:
                states[target] = joined
                if target not in queued:
                    queued.add(target)
                    heapq.heappush(work, target)
    return states


def _after(kernel, i, known, live):
    instruction = kernel.code[i]
    out = {name: origins for name, origins in known.items() if name in live}
    if any(name in live for name in instruction.results):
        value = _value(kernel, instruction, known)
        keeps = instruction.guard is not None and not _fully_guarded(kernel, i)
        wide = instruction.base in ("LDC", "ULDC", "LDCU", "MOV", "UMOV") and len(instruction.results) == 2
        for word, name in enumerate(instruction.results):
            # The upper word of the pointer to the parameters says nothing of the place among them: no step reaches it.
            new = frozenset(o for o in value if o[0] != "address") if wide and word else value
            origins = new | known.get(name, frozenset()) if keeps else new
            out.pop(name, None)
            if origins and name in live:
                out[name] = origins
    return out


def _fully_guarded(kernel, i):
    """Whether the old value of a guarded definition cannot reach a reader.

    Either the next reader has the same guard; or the guard comes from an election (`ELECT`): that is how code makes
    one lane's operands uniform, lane after lane, and some lane is always elected.
    """
    guard, results = kernel.code[i].guard, set(kernel.code[i].results)
    if kernel.code[i].base == "R2UR" and _elected(kernel, i, guard):
        return True
    for instruction in kernel.code[i + 1 :]:
        if results.intersection(instruction.sources):
            return instruction.guard == guard
        if instruction.labels or instruction.base in ("BRA", "EXIT", "BSYNC"):
            return False
        if "SETP" in instruction.opcode and guard.lstrip("!") in instruction.operands[:2]:
            return False
    return False


def _elected(kernel, i, guard):
    for instruction in reversed(kernel.code[:i]):
        if instruction.base == "ELECT":
            return instruction.operands[0] == guard
        if guard in instruction.operands[:1] and "R2UR" not in instruction.opcode:
            return False
        if instruction.labels:
            return False
    return False


def _join(old, known, waited):
    if old is None:
        return known, waited
    merged = dict(old[0])
    for name, origins in known.items():
        merged[name] = merged.get(name, frozenset()) | origins
    return merged, old[1] and waited
