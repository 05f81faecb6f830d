"""Machine code of a compiled kernel as data: parameters, resources, instructions, control flow.

Reads a cubin with NVIDIA's `cuobjdump` and `nvdisasm` (packages `nvidia-cuda-cuobjdump`, `nvidia-cuda-nvdisasm`);
needs no GPU and no driver.
"""

import functools
import heapq
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

_INSTRUCTION = re.compile(r"\s+/\*(\w{4,})\*/\s+(?:@(!?U?PT?\d*)\s+)?(\S+?)(?:\s+(.*?))?\s*;")
_REGISTER = re.compile(r"(?<![\w.])(U?R)(\d+)((?:\.\w+)*)")
_PREDICATE = re.compile(r"!?U?PT?\d*")
_LABEL = re.compile(r"`\((\.L_\S+?)\)")

# Opcodes whose first operand is not a general register that they define.
_NO_RESULT = (
    "ACQBULK",
    "ARRIVES",
    "BAR",
    "BRA",
    "BSSY",
    "BSYNC",
    "CALL",
    "CCTL",
    "DEPBAR",
    "ERRBAR",
    "EXIT",
    "FENCE",
    "FSETP",
    "ISETP",
    "LDGSTS",
    "MEMBAR",
    "NANOSLEEP",
    "NOP",
    "PLOP3",
    "PREEXIT",
    "PSETP",
    "RED.",
    "REDG",
    "RET",
    "ST",
    "SYNCS",
    "UBLK",
    "UCGABAR",
    "UISETP",
    "UTMA",
    "VOTEU",
    "WARPSYNC",
    "YIELD",
)


def tool(name: str) -> str:
    """Path of a CUDA binary tool: from its Python package, else from PATH.

    Raises FileNotFoundError if there is none. The tools inside Triton cannot decode sm_103 and are not used.
    """
    spec = util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec and spec.submodule_search_locations else ():
        for path in sorted(Path(root).glob(f"cu*/bin/{name}")):
            return str(path)
    if found := shutil.which(name):
        return found
    raise FileNotFoundError(f"{name} is not installed; pip install nvidia-cuda-{name}")


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter: its place in the parameter space, in bytes."""

    ordinal: int
    offset: int
    size: int


@dataclass(frozen=True)
class Instruction:
    """One instruction; `guard` is its predicate ("P0", "!UP1") or None, `operands` are split at top-level commas."""

    address: int
    guard: str | None
    opcode: str
    operands: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def base(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.split(".")[0]

    @property
    def text(self) -> str:
        """The instruction as the disassembler shows it."""
        guard = f"@{self.guard} " if self.guard else ""
        return f"/*{self.address:04x}*/ {guard}{self.opcode} {', '.join(self.operands)}"

    @functools.cached_property
    def results(self) -> tuple[str, ...]:
        """General registers that this instruction defines; also spill slots, by the names of `_slots`."""
        if self.base == "STL":
            return self._slots()
        if self.opcode.startswith(_NO_RESULT):
            return ()
        first = next((o for o in self.operands if not _PREDICATE.fullmatch(o)), "")
        match = re.match(r"(U?R)(\d+)", first)
        if not match:
            return ()
        return tuple(f"{match[1]}{int(match[2]) + i}" for i in range(self._result_width()))

    def _slots(self) -> tuple[str, ...]:
        """Names of the spill slots at a fixed place of the stack; none for a computed place."""
        address = self.operands[0 if self.base == "STL" else 1]
        match = re.fullmatch(r"\[R1(?:\+(0x[0-9a-f]+))?\]", address)
        first = int(match[1] or "0", 16) if match else 0
        return tuple(f"S{first + 4 * i}" for i in range(self._result_width())) if match else ()

    def _result_width(self) -> int:
        modifiers = self.opcode.split(".")
        if self.base in ("HMMA", "IMMA", "QMMA") or "128" in modifiers:
            return 4
        wide = {"64", "WIDE", "DMMA"}.intersection(modifiers) or self.base in ("DFMA", "DADD", "DMUL")
        return 2 if wide or (self.base == "CS2R" and "32" not in modifiers) else 1

    @functools.cached_property
    def sources(self) -> tuple[str, ...]:
        """General registers (and spill slots) that this instruction reads, addresses included."""
        if self.base == "LDL":
            return self._slots()
        if self.base == "STL":
            return tuple(registers(self.operands[1], self._result_width()))
        skip = 0
        if self.results:
            skip = 1 + next(i for i, o in enumerate(self.operands) if not _PREDICATE.fullmatch(o))
        spread = 4 if self.opcode.startswith(("ST", "HMMA", "RED", "ATOM")) else 1
        found = []
        read = self.operands[skip:]
        for place, operand in enumerate(read):
            addend = (
                "WIDE" in self.opcode and place == len(read) - 1
            )  # the 64-bit operand of a widening multiply
            found += registers(operand, 2 if addend or "[" in operand else spread)
        return tuple(found)

    def address_registers(self) -> list[str]:
        """Registers that form the global address of a memory instruction."""
        brackets = [o for o in self.operands if "[" in o and not o.lstrip("-").startswith("c[")]
        if self.base in ("UTMALDG", "UBLKCP", "LDGSTS"):
            brackets = brackets[1:2]  # the first bracket is the place in shared memory
        return [r for o in brackets for r in registers(re.sub(r"desc\[U?R\w+\]", "", o), 2)]


def registers(text: str, width: int = 1) -> list[str]:
    """Names of the general registers in an operand; `.64` and `width` extend each to its successors."""
    found = []
    for kind, number, modifiers in _REGISTER.findall(text):
        count = 2 if ".64" in modifiers else width
        found += [f"{kind}{int(number) + i}" for i in range(count)]
    return found


@dataclass(frozen=True)
class Kernel:
    """One kernel of a cubin.

    constant_base: where parameters begin in constant bank 0. threads: of a block, if the code requires a number.
    registers: per thread. stack_bytes, shared_bytes: per thread and (static) per block.
    """

    name: str
    code: tuple[Instruction, ...]
    parameters: tuple[Parameter, ...]
    constant_base: int
    threads: int | None
    registers: int
    stack_bytes: int
    shared_bytes: int

    def ordinal_at(self, offset: int) -> int | None:
        """Ordinal of the parameter that holds byte `offset` of the parameter space."""
        for parameter in self.parameters:
            if parameter.offset <= offset < parameter.offset + parameter.size:
                return parameter.ordinal
        return None

    def successors(self) -> list[list[int]]:
        """Control-flow successors of every instruction, by index; empty for code that nothing reaches.

        A `BSYNC` continues where the `BSSY` of its barrier said. Barrier registers are reused, so the targets they
        hold are followed along the paths.
        """
        place = {label: i for i, instruction in enumerate(self.code) for label in instruction.labels}
        following: list[list[int]] = [[] for _ in self.code]
        joins: list[dict[str, frozenset[int]] | None] = [None] * len(self.code)
        joins[:1] = [{}]
        work = [0] if self.code else []
        while work:
            i = heapq.heappop(work)
            held, instruction = joins[i] or {}, self.code[i]
            if instruction.base == "BSSY":
                target = place[_LABEL.findall(instruction.operands[1])[0]]
                held = {**held, instruction.operands[0]: frozenset({target})}
            following[i] = self._next(i, place, held)
            for target in following[i]:
                old = joins[target] or {}
                merged = {
                    b: old.get(b, frozenset()) | held.get(b, frozenset()) for b in old.keys() | held.keys()
                }
                if joins[target] is None or merged != old:
                    joins[target] = merged
                    heapq.heappush(work, target)
        return following

    def _next(self, i, place, held):
        instruction = self.code[i]
        following = [i + 1] if i + 1 < len(self.code) else []
        targets = [
            place[label] for o in instruction.operands for label in _LABEL.findall(o) if label in place
        ]
        conditional = instruction.guard is not None or (
            bool(instruction.operands) and bool(_PREDICATE.fullmatch(instruction.operands[0]))
        )
        if instruction.base in ("BRA", "JMP"):
            conditional = conditional or "ANY" in instruction.opcode or "DIV" in instruction.opcode
            return targets + (following if conditional else [])
        if instruction.base == "BRX":
            return sorted(place.values())
        if instruction.base in ("EXIT", "RET", "KILL"):
            return following if conditional else []
        if instruction.base == "BSYNC":
            return sorted(held.get(instruction.operands[0], ())) + (following if conditional else [])
        return targets + following if instruction.base == "CALL" else following


def disassemble(image: bytes) -> list[Kernel]:
    """Every kernel of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        layout = _layout(_run("cuobjdump", "-elf", file.name))
        usage = _usage(_run("cuobjdump", "--dump-resource-usage", file.name))
        code = _code(_run("nvdisasm", "-c", file.name))
    kernels = []
    for name, instructions in code.items():
        base, parameters, threads = layout[name]
        kernels.append(Kernel(name, tuple(instructions), tuple(parameters), base, threads, *usage[name]))
    return kernels


def _run(name, *arguments):
    done = subprocess.run([tool(name), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr.strip()}")
    return done.stdout


def _layout(text):
    """kernel -> (constant base, parameters, required threads), from the ELF's `.nv.info` sections."""
    found: dict[str, list[Any]] = {}
    kernel, attribute = None, ""
    for line in text.splitlines():
        if match := re.match(r"\s*\.nv\.info\.(\S+)", line):
            kernel = found.setdefault(match[1], [0, [], None])
        elif match := re.search(r"EIATTR_(\w+)", line):
            attribute = match[1]
        elif kernel is not None and (
            match := re.search(r"Ordinal : (\w+)\s+Offset  : (\w+)\s+Size    : (\w+)", line)
        ):
            kernel[1].append(Parameter(*(int(value, 16) for value in match.groups())))
        elif kernel is not None and (match := re.search(r"Value:\s+(.*)", line)):
            values = [int(value, 16) for value in re.findall(r"0x\w+", match[1])]
            if attribute == "PARAM_CBANK":
                kernel[0] = values[1] & 0xFFFF
            elif attribute == "REQNTID":
                kernel[2] = values[0] * values[1] * values[2]
    return found


def _usage(text):
    """kernel -> (registers, stack bytes, static shared bytes)."""
    found: dict[str, tuple[int, ...]] = {}
    name = None
    for line in text.splitlines():
        if match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif name and (match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line)):
            found[name] = tuple(int(value) for value in match.groups())
    return found


def _code(text):
    """kernel -> instructions, from the disassembly."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    labels: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"\.text\.(\S+):", line):
            current, labels = found.setdefault(match[1], []), []
        elif match := re.match(r"(\.L_\S+):", line):
            labels.append(match[1])
        elif current is not None and (match := _INSTRUCTION.match(line)):
            address, guard, opcode, operands = match.groups()
            split = tuple(
                _split(re.sub(r"\(\*.*?\*\)", "", operands or ""))
            )  # without the compiler's remarks
            current.append(Instruction(int(address, 16), guard, opcode, split, tuple(labels)))
            labels = []
    return found


def _split(text):
    """Split operands at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += character in "[({"
        depth -= character in "])}"
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()] if current.strip() else parts
