"""Device-side building blocks of the CuTe DSL kernels: inline PTX with its memory behaviour spelled out.

Every load says what it reads, because that decides where it may run (see `audit`): `load_weight` may run before
the dependency wait, `load_activation` and `load_state` may not. All of them are coherent and side-effecting:
ptxas moves a non-coherent load (`ld.global.nc`) over the wait in either direction, so it would neither be safe
for activations nor stay ahead of the wait for weights.
"""

from functools import wraps

import cutlass
from cutlass import Float32, Int32, Uint32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

WARP = 32
SHARED_BYTES = 233472  # of a multiprocessor, on sm_90, sm_100 and sm_103
RESERVED_BYTES = 1024  # of it, per CTA


def shared_bytes(needed: int, resident: int) -> int:
    """Dynamic shared memory to ask for so that at most `resident` CTAs share a multiprocessor.

    Kernels chained by programmatic dependent launch start while their predecessors run. Without a limit the
    scheduler stacks many CTAs of one grid on the multiprocessors that are free first, and the grid waits for them.
    """
    return max(needed, SHARED_BYTES // (resident + 1) - RESERVED_BYTES + 16)


def _operand(value, kind, loc, ip):
    """Return the IR value of `value`; a pointer passes its address, 32 bits wide for "r" (shared memory)."""
    if hasattr(value, "toint"):
        value = value.toint(loc=loc, ip=ip)
        if kind == "r":
            value = Int32(value)
    return value.ir_value(loc=loc, ip=ip)


def ptx(code, constraints, operands, results=None, *, pure=False, loc=None, ip=None):
    """Emit one inline-PTX block and return its result(s); `results` is None, a type, or a tuple of types.

    A block is side-effecting unless `pure`: LLVM may drop, merge or move a pure block.
    """
    kinds = [c for c in constraints.split(",") if c and c[0] not in "=~"]
    values = [_operand(v, kind, loc, ip) for v, kind in zip(operands, kinds, strict=True)]
    many = isinstance(results, tuple)
    result_type = None
    if many:
        result_type = llvm.StructType.get_literal([r.mlir_type for r in results])
    elif results is not None:
        result_type = results.mlir_type
    block = llvm.inline_asm(
        result_type,
        values,
        code,
        constraints,
        has_side_effects=not pure,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    if many:
        fields = (llvm.extractvalue(r.mlir_type, block, [i], loc=loc, ip=ip) for i, r in enumerate(results))
        return tuple(r(field) for r, field in zip(results, fields, strict=True))
    return None if results is None else results(block)


def operation(build):
    """Turn `build(*args) -> (code, constraints, operands, results, pure)` into a DSL operation."""

    @dsl_user_op
    @wraps(build)
    def op(*args, loc=None, ip=None, **kwargs):
        code, constraints, operands, results, pure = build(*args, **kwargs)
        return ptx(code, constraints, operands, results, pure=pure, loc=loc, ip=ip)

    return op


# ---- global memory ----------------------------------------------------------------------------------------


def _vector(count, first):
    """The vector suffix and register list of a `count`-word access whose first operand number is `first`."""
    registers = ", ".join(f"${first + i}" for i in range(count))
    return (f".v{count}", "{" + registers + "}") if count > 1 else ("", registers)


def _global_load(pointer, count, kind, result, cached=False):
    suffix, registers = _vector(count, 0)
    constraints = ",".join([f"={kind}"] * count + ["l", "~{memory}"])
    code = f"ld.global{'' if cached else '.L1::no_allocate'}{suffix}.b32 {registers}, [${count}];"
    return code, constraints, (pointer,), (result,) * count, False


@operation
def load_weight(pointer, words=4):
    """`words` 32-bit words of a static weight."""
    return _global_load(pointer, words, "r", Uint32)


@operation
def load_activation(pointer, words=4, cached=False):
    """`words` 32-bit words that an earlier kernel of the step wrote; `cached` keeps the rest of a sector in L1."""
    return _global_load(pointer, words, "r", Uint32, cached)


@operation
def load_state(pointer, words=4):
    """`words` FP32 values of a state that this kernel updates in place."""
    return _global_load(pointer, words, "f", Float32)


@operation
def load_bf16_bits(pointer):
    """One BF16, as the low half of a 32-bit word; activation or weight, so never non-coherent."""
    return "ld.global.u16 $0, [$1];", "=r,l,~{memory}", (pointer,), Uint32, False


@operation
def load_int(pointer):
    """One 32-bit integer of a table that the host wrote before the launch."""
    return "ld.global.s32 $0, [$1];", "=r,l,~{memory}", (pointer,), Int32, False


@operation
def load_byte(pointer):
    """One unsigned byte, as a 32-bit word."""
    return "ld.global.u8 $0, [$1];", "=r,l,~{memory}", (pointer,), Uint32, False


@operation
def load_float(pointer):
    """One FP32."""
    return "ld.global.f32 $0, [$1];", "=f,l,~{memory}", (pointer,), Float32, False


@operation
def load_published(pointer, words=4):
    """`words` 32-bit words that other CTAs of this launch wrote before a `count_up` that this CTA has seen."""
    suffix, registers = _vector(words, 0)
    code = f"ld.relaxed.gpu.global{suffix}.b32 {registers}, [${words}];"
    return code, ",".join(["=r"] * words + ["l", "~{memory}"]), (pointer,), (Uint32,) * words, False


@operation
def count_up(pointer):
    """Add 1 to a counter that all CTAs share and return what it was; orders this thread's accesses around it."""
    code = "atom.acq_rel.gpu.global.add.s32 $0, [$1], 1;"
    return code, "=r,l,~{memory}", (pointer,), Int32, False


@operation
def reset_counter(pointer):
    """Set a shared counter to 0."""
    return "st.relaxed.gpu.global.s32 [$0], 0;", "l,~{memory}", (pointer,), None, False


def _global_store(pointer, values, kind):
    suffix, registers = _vector(len(values), 1)
    constraints = ",".join(["l"] + [kind] * len(values) + ["~{memory}"])
    return f"st.global{suffix}.b32 [$0], {registers};", constraints, (pointer, *values), None, False


@operation
def store_words(pointer, words):
    """A tuple of 32-bit words to global memory."""
    return _global_store(pointer, words, "r")


@operation
def store_floats(pointer, values):
    """A tuple of FP32 values to global memory."""
    return _global_store(pointer, values, "f")


@operation
def store_bf16(pointer, value):
    """One FP32 rounded to BF16, to global memory."""
    code = "{ .reg .b16 half; cvt.rn.bf16.f32 half, $1; st.global.b16 [$0], half; }"
    return code, "l,f,~{memory}", (pointer, Float32(value)), None, False


@operation
def store_bf16_bits(pointer, bits):
    """The low half of a 32-bit word, to global memory."""
    code = "{ .reg .b16 half; cvt.u16.u32 half, $1; st.global.b16 [$0], half; }"
    return code, "l,r,~{memory}", (pointer, bits), None, False


# ---- BF16 pairs -------------------------------------------------------------------------------------------


def bf16_low(word):
    """FP32 value of the BF16 in the low half of `word`."""
    return Float32(llvm.bitcast(T.f32(), (word << Uint32(16)).ir_value()))


def bf16_high(word):
    """FP32 value of the BF16 in the high half of `word`."""
    return Float32(llvm.bitcast(T.f32(), (word & Uint32(0xFFFF0000)).ir_value()))


def unpack(words):
    """The FP32 values of BF16x2 words, in memory order."""
    return tuple(half(word) for word in words for half in (bf16_low, bf16_high))


@operation
def _pack2(low, high):
    return "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", (Float32(low), Float32(high)), Uint32, True


def pack(values):
    """BF16x2 words of an even number of FP32 values, rounded to nearest even."""
    return tuple(_pack2(values[i], values[i + 1]) for i in range(0, len(values), 2))


@operation
def scale_bf16(pair, factor):
    """The BF16x2 product of two BF16x2 words, rounded to nearest even; subnormals are kept."""
    return "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", (pair, factor), Uint32, True


@operation
def multiply_add(a, b, c):
    """The low 32 bits of `a * b + c`."""
    return "mad.lo.u32 $0, $1, $2, $3;", "=r,r,r,r", (a, b, Uint32(c)), Uint32, True


@operation
def permute_bytes(low, high, selector):
    """Four bytes out of the eight of (`low`, `high`); nibble i of `selector` says which becomes byte i."""
    return "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", (low, high, Uint32(selector)), Uint32, True


@operation
def again(word):
    """The same 32-bit word, as if it were a new one: what was derived from it before is derived anew, not kept."""
    return "mov.b32 $0, $1;", "=r,r", (word,), Uint32, False


def as_float(word):
    """The FP32 value with the bits of `word`."""
    return Float32(llvm.bitcast(T.f32(), word.ir_value()))


def as_bits(value):
    """The bits of an FP32 value."""
    return Uint32(llvm.bitcast(T.i32(), value.ir_value()))


@operation
def fma(a, b, c):
    """`a * b + c`, fused (the DSL leaves contraction of `a * b + c` to the compiler)."""
    return "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", (Float32(a), Float32(b), Float32(c)), Float32, True


def sigmoid(value):
    """`1 / (1 + exp(-value))` with the approximate exponential and reciprocal (relative error about 2e-7)."""
    return cute.arch.rcp_approx(Float32(1) + cute.math.exp(-value, fastmath=True))


@operation
def mma_bf16(a, b, c):
    """`c + a @ b` on the tensor cores, m16n8k16: four words of A, two of B, four FP32 of C per lane.

    A row is lane // 4 (words 0, 2) or 8 more (words 1, 3), a B column is lane // 4, and C columns are
    2 * (lane % 4) + (0, 1). Which eight k belong to a lane is free as long as A and B agree.
    """
    code = (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    return code, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", (*a, *b, *c), (Float32,) * 4, True


# ---- shared memory, clusters ------------------------------------------------------------------------------


@operation
def push(pointer, value, barrier, peer):
    """Store one FP32 at `pointer`'s place in CTA `peer` of the cluster; completes 4 bytes on its `barrier`."""
    code = (
        "{ .reg .b32 there, signal; mapa.shared::cluster.u32 there, $0, $3; "
        "mapa.shared::cluster.u32 signal, $2, $3; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], $1, [signal]; }"
    )
    return code, "r,f,r,r,~{memory}", (pointer, value, barrier, Int32(peer)), None, False


@operation
def push4(pointer, values, barrier, peer):
    """Store four FP32 at `pointer`'s place in CTA `peer` of the cluster; completes 16 bytes on its `barrier`."""
    code = (
        "{ .reg .b32 there, signal; mapa.shared::cluster.u32 there, $0, $6; "
        "mapa.shared::cluster.u32 signal, $5, $6; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {$1, $2, $3, $4}, [signal]; }"
    )
    return code, "r,f,f,f,f,r,r,~{memory}", (pointer, *values, barrier, Int32(peer)), None, False


@operation
def _try_wait(barrier, phase):
    code = (
        "{ .reg .pred done; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$1], $2; "
        "selp.u32 $0, 1, 0, done; }"
    )
    return code, "=r,r,r,~{memory}", (barrier, Int32(phase)), Int32, False


@cute.jit
def wait_pushes(barrier, phase=0):
    """Block until the pushes of `phase` have arrived; what the cluster's CTAs pushed is then visible."""
    done = _try_wait(barrier, phase)
    while done == 0:
        done = _try_wait(barrier, phase)


@operation
def copy_activation(shared, pointer, present):
    """Start copying 16 bytes of an activation to shared memory; zeros instead if `present` is 0."""
    code = "{ .reg .b32 size; shl.b32 size, $2, 4; cp.async.cg.shared.global [$0], [$1], 16, size; }"
    return code, "r,l,r,~{memory}", (shared, pointer, Int32(present)), None, False


@operation
def copy_bulk(shared, pointer, size, barrier):
    """Have the copy engine bring `size` contiguous bytes to shared memory; completes them on `barrier`."""
    code = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    return code, "r,l,r,r,~{memory}", (shared, pointer, Int32(size), barrier), None, False


@operation
def prefetch_bulk(pointer, size):
    """Bring `size` contiguous bytes of a weight to the L2 cache."""
    return "cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r,~{memory}", (pointer, Int32(size)), None, False


@operation
def arrive_after_copies(barrier):
    """Arrive once on `barrier` when all copies that this thread has started are done."""
    return "cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r,~{memory}", (barrier,), None, False


@operation
def load_shared4(pointer):
    """Four FP32 values from shared memory."""
    code = "ld.shared.v4.f32 {$0,$1,$2,$3}, [$4];"
    return code, "=f,=f,=f,=f,r,~{memory}", (pointer,), (Float32,) * 4, False


@operation
def load_shared_words(pointer):
    """Four 32-bit words from shared memory."""
    return (
        "ld.shared.v4.b32 {$0,$1,$2,$3}, [$4];",
        "=r,=r,=r,=r,r,~{memory}",
        (pointer,),
        (Uint32,) * 4,
        False,
    )


@operation
def load_shared_bf16_bits(pointer):
    """One BF16 from shared memory, as the low half of a 32-bit word."""
    return "ld.shared.u16 $0, [$1];", "=r,r,~{memory}", (pointer,), Uint32, False


@operation
def store_shared4(pointer, values):
    """Four FP32 values to shared memory."""
    return "st.shared.v4.f32 [$0], {$1,$2,$3,$4};", "r,f,f,f,f,~{memory}", (pointer, *values), None, False


@operation
def mark_shared(pointer, bits):
    """Or `bits` into a 32-bit word of shared memory."""
    return "red.shared.or.b32 [$0], $1;", "r,r,~{memory}", (pointer, bits), None, False


@operation
def count_shared(pointer):
    """Add 1 to a 32-bit word of shared memory and return what it was."""
    return "atom.shared.add.u32 $0, [$1], 1;", "=r,r,~{memory}", (pointer,), Uint32, False


@operation
def load_shared_pair(pointer):
    """Two 32-bit words from shared memory."""
    return "ld.shared.v2.b32 {$0,$1}, [$2];", "=r,=r,r,~{memory}", (pointer,), (Uint32,) * 2, False


@operation
def store_shared_pair(pointer, words):
    """Two 32-bit words to shared memory."""
    return "st.shared.v2.b32 [$0], {$1,$2};", "r,r,r,~{memory}", (pointer, *words), None, False


@operation
def load_shared_word(pointer):
    """One 32-bit word from shared memory."""
    return "ld.shared.b32 $0, [$1];", "=r,r,~{memory}", (pointer,), Uint32, False


@operation
def store_shared_word(pointer, word):
    """One 32-bit word to shared memory."""
    return "st.shared.b32 [$0], $1;", "r,r,~{memory}", (pointer, Uint32(word)), None, False


# ---- warp reductions --------------------------------------------------------------------------------------


@operation
def warp_max(word):
    """Largest of an unsigned word over the warp."""
    return "redux.sync.max.u32 $0, $1, 0xffffffff;", "=r,r", (word,), Uint32, False


@operation
def warp_min(word):
    """Smallest of an unsigned word over the warp."""
    return "redux.sync.min.u32 $0, $1, 0xffffffff;", "=r,r", (word,), Uint32, False


@cute.jit
def warp_sum(value, lanes: cutlass.Constexpr = WARP):
    """Sum over aligned groups of `lanes` lanes; every lane gets the result."""
    for step in cutlass.range_constexpr(lanes.bit_length() - 1):
        value += cute.arch.shuffle_sync_bfly(value, lanes >> (step + 1))
    return value


@cute.jit
def warp_sums(values, lane, lanes: cutlass.Constexpr = WARP):
    """Sum each of `values` (a power-of-two count ≤ `lanes`) over aligned groups of `lanes` lanes.

    Lane `l` of a group receives the total of `values[l // (lanes // count)]`. Costs
    `count - 1 + log2(lanes / count)` shuffles instead of `log2(lanes) * count`: each step halves the values
    a lane still carries.
    """
    count: cutlass.Constexpr = len(values)
    carried = list(values)
    for step in cutlass.range_constexpr(lanes.bit_length() - 1):
        offset = lanes >> (step + 1)
        half = (count >> step) // 2
        if cutlass.const_expr(half > 0):
            upper = (lane & offset) != 0
            kept = []
            for i in cutlass.range_constexpr(half):
                send = carried[i] if upper else carried[i + half]
                keep = carried[i + half] if upper else carried[i]
                kept.append(keep + cute.arch.shuffle_sync_bfly(send, offset))
            carried = kept
        else:
            carried = [carried[0] + cute.arch.shuffle_sync_bfly(carried[0], offset)]
    return carried[0]
