"""Values and memory of the CPU simulator of device code (`simt`)."""

import math
import struct
from typing import Any

import torch


class Float(float):
    """An FP32 value, kept in FP64."""

    inf = float("inf")
    size = 4

    @staticmethod
    def bits(value: float) -> int:
        """The bits of the value in FP32."""
        return int.from_bytes(_packed("f", (value,)), "little")

    @staticmethod
    def of_bits(word: int) -> float:
        """The FP32 value with these bits."""
        return float(struct.unpack("<f", int(word).to_bytes(4, "little"))[0])


class Integer(int):
    """An integer of any width."""

    size = 4


class Memory:
    """Some bytes; reads and writes stay inside them."""

    def __init__(self, data: Any, name: str) -> None:
        self.data, self.name = data, name


class Pointer:
    """A place in a memory; sums count elements of `size` bytes."""

    def __init__(self, memory: Memory, offset: int, size: int) -> None:
        self.memory, self.offset, self.size = memory, offset, size

    def __add__(self, elements: int) -> "Pointer":
        return Pointer(self.memory, self.offset + int(elements) * self.size, self.size)

    def read(self, count: int) -> bytes:
        """`count` bytes."""
        self._check(count)
        return bytes(self.memory.data[self.offset : self.offset + count])

    def write(self, data: bytes) -> None:
        """Store bytes."""
        self._check(len(data))
        self.memory.data[self.offset : self.offset + len(data)] = data

    def words(self, kind: str, count: int) -> tuple[Any, ...]:
        """`count` aligned 32-bit words, unpacked as `kind` of `struct`."""
        assert self.offset % (4 * count) == 0, f"{self.memory.name}: a load of {count} words is not aligned"
        return struct.unpack(f"<{count}{kind}", self.read(4 * count))

    def store(self, kind: str, values: Any) -> None:
        """Aligned 32-bit words."""
        values = tuple(values)
        assert self.offset % (4 * len(values)) == 0, f"{self.memory.name}: a store is not aligned"
        self.write(_packed(kind, values))

    def _check(self, count: int) -> None:
        inside = self.offset >= 0 and self.offset + count <= len(self.memory.data)
        assert inside, f"{self.memory.name}: {count} bytes at {self.offset} of {len(self.memory.data)}"


def _packed(kind: str, values: tuple[Any, ...]) -> bytes:
    if kind == "f":  # beyond FP32 is infinite, not an error
        values = tuple(v if not abs(v) >= 3.4e38 else math.copysign(math.inf, v) for v in values)
    return struct.pack(f"<{len(values)}{kind}", *values)


class Tensor:
    """A CPU tensor as device code sees it: `iterator`, `shape`, `stride`; its memory is the whole storage."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        size = tensor.element_size()
        memory = Memory(memoryview(whole.numpy()), name)
        self.iterator = Pointer(memory, tensor.storage_offset() * size, size)
        self.shape, self.stride = tuple(tensor.shape), tensor.stride()


class Registers(dict[Any, Any]):
    """A tensor of a thread's registers; `fill` sets whatever has not been set since."""

    value: Any = float("nan")

    def fill(self, value: Any) -> None:
        """Set every element."""
        self.clear()
        self.value = value

    def __missing__(self, place: Any) -> Any:
        return self.value


class Barrier:
    """An mbarrier: `count` arrivals and all expected bytes end a phase."""

    def __init__(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = self.phase = 0

    def arrive(self, expected: int = 0, *, counts: bool = True) -> int:
        """One arrival that expects bytes, or (`counts` false) bytes that came; returns the phases that it ended."""
        self.bytes += expected
        self.pending -= counts
        assert self.pending >= 0, "more arrivals than a barrier counts"
        if self.pending or self.bytes:
            return 0
        self.pending, self.phase = self.count, self.phase ^ 1
        return 1
