"""Runs the device code of a CuTe DSL kernel on the CPU, thread by thread, for tests of what it computes.

The kernel's source text is executed as Python with stand-ins for the DSL and for the building blocks of `cute_ops` and
`cute_matrices`. Every method that may wait becomes a generator, so that all threads of a CTA run in turn; a thread that
waits for its warp, a barrier or a copy yields. Bulk copies arrive late, at random, some warps stand still after a
barrier, and shared memory starts full of NaN. A thread that loads an activation before its dependency wait, an access
that is not aligned or out of bounds, and a CTA in which nobody can go on raise AssertionError.

What it cannot see: the memory model, clusters, the rounding of FP32 (arithmetic is FP64, BF16 is rounded), time.
"""

import ast
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runtime.kernels.common.workshop.simt_memory import (
    Barrier,
    Float,
    Integer,
    Memory,
    Pointer,
    Registers,
    Tensor,
)
from runtime.kernels.common.workshop.simt_warp import multiply_tiles, pack, read_matrices, unpack

WARP = 32
DSL = ("cutlass", "runtime.kernels.common.launch.cute_")
WAITING = {"mma_bf16", "warp_sum", "load_matrices", "load_matrices_transposed"}
WAITING_ARCH = {
    "sync_threads", "sync_warp", "barrier", "shuffle_sync", "shuffle_sync_bfly", "vote_ballot_sync", "mbarrier_wait",
}  # fmt: skip


def load_kernel(paths: Iterable[Path], name: str) -> Any:
    """The class `name` out of source files, as a Python class whose kernel a `Cta` can run."""
    trees = [ast.parse(path.read_text()) for path in paths]
    methods = {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _is_device(node)
    }
    namespace: dict[str, Any] = dict(_STAND_INS)
    for tree in trees:
        body = [node for node in tree.body if not _imports(node)]
        module = ast.Module([_Waits(methods).visit(node) for node in body], [])
        exec(compile(ast.fix_missing_locations(module), "<device code>", "exec"), namespace)
    return namespace[name]


def _is_device(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(d) in ("cute.jit", "cute.kernel") for d in node.decorator_list)


def _imports(node: ast.stmt) -> bool:
    """Whether a statement imports the DSL, its building blocks or another file of the kernel."""
    module = getattr(node, "module", None) or (node.names[0].name if isinstance(node, ast.Import) else "")
    return module.startswith(DSL) or ".cute_" in module


class _Waits(ast.NodeTransformer):
    """Turns device methods into generators, and their calls of what may wait into `yield from`."""

    def __init__(self, methods: set[str]) -> None:
        self.methods = methods

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not _is_device(node):
            return node
        node.decorator_list = []
        self.generic_visit(node)
        node.body += ast.parse("if False: yield").body
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        waits = (isinstance(function, ast.Name) and function.id in WAITING) or (
            isinstance(function, ast.Attribute)
            and (
                (ast.unparse(function.value) == "self" and function.attr in self.methods)
                or (ast.unparse(function.value) == "cute.arch" and function.attr in WAITING_ARCH)
            )
        )
        return ast.YieldFrom(node) if waits else node


class _Meeting:
    """Threads that wait for each other: their values, and what became of them."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.result: Any = None
        self.over = False


class Cta:
    """One CTA: its threads, shared memory, barriers and copies on their way. seed: of the order of everything."""

    def __init__(self, threads: int, index: int, grid: int, shared_bytes: int, seed: int = 0) -> None:
        self.threads, self.index, self.grid = threads, index, grid
        self.shared = Memory(bytearray(b"\xff" * shared_bytes), "shared memory")
        self.barriers: dict[int, Barrier] = {}
        self.copies: list[Callable[[], None]] = []
        self.meetings: dict[Any, _Meeting] = {}
        self.waited = [False] * threads
        self.random, self.thread, self.progress = random.Random(seed), 0, 0
        self.asleep: set[int] = set()  # warps that stand still until the others cannot go on
        self.parted = False  # whether warps have just left a barrier

    def run(self, kernel: Callable[..., Any], *arguments: Any) -> None:
        """Run every thread of `kernel(*arguments)` to its end."""
        _current[0] = self
        running = {thread: kernel(*arguments) for thread in range(self.threads)}
        idle = 0
        while running:
            before = self.progress
            for thread in self._order(running):
                self.thread = thread
                try:
                    next(running[thread])
                except StopIteration:
                    del running[thread]
                    self.progress += 1
            if self.copies and (self.progress == before or self.random.random() < 0.2):
                self.copies.pop(self.random.randrange(len(self.copies)))()
                self.progress += 1
            idle = 0 if self.progress > before else idle + (not self.asleep)
            if self.parted or self.progress == before:
                self._fall_asleep(self.parted)
                self.parted = False
            assert idle < 3, f"CTA {self.index}: {len(running)} threads wait for ever"
        assert not self.copies, "a copy is on its way when the CTA ends"

    def _fall_asleep(self, some: bool) -> None:
        """Let other warps stand still, or none: who may overtake another after a barrier does, and by far."""
        warps = range(-(-self.threads // WARP))
        self.asleep = {warp for warp in warps if some and self.random.random() < 0.4}

    def _order(self, running: dict[int, Any]) -> list[int]:
        warps = [warp for warp in range(-(-self.threads // WARP)) if warp not in self.asleep]
        self.random.shuffle(warps)
        return [t for w in warps for t in range(w * WARP, (w + 1) * WARP) if t in running]

    def meet(self, group: Any, size: int, value: Any, combine: Callable[[dict[int, Any]], Any]) -> Any:
        """Wait until `size` threads have come to `group`; every one gets `combine` of their values by thread."""
        meeting = self.meetings.setdefault(group, _Meeting())
        meeting.values[self.thread] = value
        if len(meeting.values) == size:
            meeting.result, meeting.over = combine(meeting.values), True
            self.meetings.pop(group)
            self.progress += 1
            self.parted |= size > WARP
        while not meeting.over:
            yield
        return meeting.result

    def warp_meet(self, kind: Any, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """As `meet` for the 32 lanes of this thread's warp, values by lane; `kind` tells diverged lanes apart."""
        warp = self.thread // WARP

        def by_lane(values: dict[int, Any]) -> Any:
            return combine([values[warp * WARP + lane] for lane in range(WARP)])

        return self.meet((kind, warp), WARP, value, by_lane)


_current: list[Any] = [None]


def _cta() -> Cta:
    return _current[0]


def _lane() -> int:
    return _cta().thread % WARP


def _shuffle(value, source):
    values = yield from _cta().warp_meet("shuffle", value, list)
    return values[source]


def _shuffle_bfly(value, step):
    return (yield from _shuffle(value, _lane() ^ step))


def _ballot(condition):
    return (
        yield from _cta().warp_meet("ballot", bool(condition), lambda v: sum(b << i for i, b in enumerate(v)))
    )


def _warp_sum(value):
    return (yield from _cta().warp_meet("sum", value, sum))


def _mma(a, b, c):
    lane = _lane()
    sums = yield from _cta().warp_meet("mma", (a, b, c), multiply_tiles)
    return sums[lane]


def _matrices(transposed):
    def load(pointer):
        lane = _lane()
        words = yield from _cta().warp_meet("matrices", pointer, lambda rows: read_matrices(rows, transposed))
        return words[lane]

    return load


def _barrier(barrier_id=0, number_of_threads=None):
    cta = _cta()
    yield from cta.meet(("barrier", barrier_id), number_of_threads or cta.threads, None, len)


def _sync_warp():
    yield from _cta().warp_meet("sync", None, len)


def _wait(pointer, phase):
    barrier = _cta().barriers[pointer.offset]
    while barrier.phase == phase:
        yield


def _arrive(pointer, expected=0):
    cta = _cta()
    cta.progress += cta.barriers[pointer.offset].arrive(expected)


def _copy_bulk(shared, source, size, barrier):
    cta = _cta()
    assert size % 16 == 0 and shared.offset % 16 == 0 and source.offset % 16 == 0, (
        "a bulk copy is not aligned"
    )

    def arrive() -> None:
        shared.write(source.read(size))
        cta.barriers[barrier.offset].arrive(-size, counts=False)

    cta.copies.append(arrive)


def _load(kind, size):
    def load(pointer, words=size):
        found = pointer.words(kind, words)
        return found if words > 1 else found[0]

    return load


def _activation(pointer, words=4, **_):
    cta = _cta()
    assert cta.waited[cta.thread], "an activation is loaded before the dependency wait"
    return pointer.words("I", words)


def _store(kind):
    def store(pointer, values):
        cta = _cta()
        assert pointer.memory is cta.shared or cta.waited[cta.thread], "a store before the dependency wait"
        pointer.store(kind, values if isinstance(values, (tuple, list)) else (values,))

    return store


def _waited():
    cta = _cta()
    cta.waited[cta.thread] = True


class _Shared:
    """The allocator: the same places for every thread."""

    def __init__(self) -> None:
        self.offset = 0

    def allocate_tensor(self, element, count, align):
        self.offset = -(-self.offset // align) * align
        start, self.offset = self.offset, self.offset + element.size * count
        assert self.offset <= len(_cta().shared.data), "more shared memory than asked for"
        return SimpleNamespace(iterator=Pointer(_cta().shared, start, element.size))


def _fmax(a, b):
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _exp2(value):
    return float("inf") if value >= 1024 else 2.0**value


def _log2(value):
    return -float("inf") if value == 0 else math.log2(value)


def _range(*bounds, **_):
    return range(*bounds)


def _rsqrt(value, **_):
    return value**-0.5


def _choose(condition, first, second):
    return first if condition else second


_ARCH = SimpleNamespace(
    thread_idx=lambda: (_cta().thread, 0, 0),
    block_idx=lambda: (_cta().index, 0, 0),
    grid_dim=lambda: (_cta().grid, 1, 1),
    make_warp_uniform=lambda value: value,
    mbarrier_init=lambda pointer, count: _cta().barriers.__setitem__(pointer.offset, Barrier(count)),
    mbarrier_init_fence=lambda: None,
    mbarrier_arrive=_arrive,
    mbarrier_arrive_and_expect_tx=_arrive,
    mbarrier_wait=_wait,
    griddepcontrol_wait=_waited,
    griddepcontrol_launch_dependents=lambda: None,
    sync_threads=_barrier,
    barrier=_barrier,
    sync_warp=_sync_warp,
    shuffle_sync=_shuffle,
    shuffle_sync_bfly=_shuffle_bfly,
    vote_ballot_sync=_ballot,
    popc=lambda value: int(value).bit_count(),
    fmax=_fmax,
    rcp_approx=lambda value: 1.0 / value,
)
_STAND_INS: dict[str, Any] = {
    "cutlass": SimpleNamespace(
        Constexpr=None,
        Uint32=Integer,
        Uint64=SimpleNamespace(size=8),
        range=_range,
        range_constexpr=range,
        const_expr=lambda value: value,
        max=max,
        min=min,
        utils=SimpleNamespace(SmemAllocator=_Shared),
    ),
    "cute": SimpleNamespace(
        arch=_ARCH,
        math=SimpleNamespace(rsqrt=_rsqrt),
        Tensor=Tensor,
        make_layout=lambda count: count,
        make_rmem_tensor=lambda *_: Registers(),
    ),
    "BFloat16": SimpleNamespace(size=2),
    "Float32": Float,
    "Int32": Integer,
    "Int64": Integer,
    "WARP": WARP,
    "as_bits": Float.bits,
    "as_float": Float.of_bits,
    "choose_address": _choose,
    "copy_bulk": _copy_bulk,
    "exp2": _exp2,
    "fence_copies": lambda: None,
    "fma": lambda a, b, c: a * b + c,
    "load_activation": _activation,
    "load_int": _load("i", 1),
    "load_matrices": _matrices(False),
    "load_matrices_transposed": _matrices(True),
    "load_shared_pair": _load("I", 2),
    "load_shared_word": _load("I", 1),
    "load_weight": _load("I", 4),
    "log2": _log2,
    "mma_bf16": _mma,
    "pack": pack,
    "shared_bytes": lambda needed, *_: needed,
    "store_floats": _store("f"),
    "store_shared4": _store("f"),
    "store_shared_pair": _store("I"),
    "store_shared_word": _store("I"),
    "store_words": _store("I"),
    "unpack": unpack,
    "warp_sum": _warp_sum,
}
