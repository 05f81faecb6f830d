"""Building blocks of the CuTe DSL kernels, beside `cute_ops`: matrices of shared memory, powers of two, addresses."""

from cutlass import Float32, Int32, Int64, Uint32

from runtime.kernels.common.launch.cute_ops import operation


def _matrices(pointer, suffix):
    code = f"ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
    return code, "=r,=r,=r,=r,r,~{memory}", (pointer,), (Uint32,) * 4, False


@operation
def load_matrices(pointer):
    """Four 8x8 BF16 matrices of shared memory, a word of each per lane: row lane // 4, columns 2 (lane % 4) + (0, 1).

    Lanes 8 i … 8 i + 7 point to the rows of matrix i, 16 bytes each.
    """
    return _matrices(pointer, "")


@operation
def load_matrices_transposed(pointer):
    """As `load_matrices`, with rows and columns exchanged: rows 2 (lane % 4) + (0, 1) of column lane // 4."""
    return _matrices(pointer, ".trans")


@operation
def exp2(value):
    """2 to the power of an FP32 value, approximated; 0 for -inf."""
    return "ex2.approx.ftz.f32 $0, $1;", "=f,f", (Float32(value),), Float32, True


@operation
def log2(value):
    """The base-2 logarithm of an FP32 value, approximated; -inf for 0."""
    return "lg2.approx.ftz.f32 $0, $1;", "=f,f", (Float32(value),), Float32, True


@operation
def choose_address(condition, first, second):
    """The address of global memory `first` where `condition` holds, else `second`, as a 64-bit word."""
    code = "{ .reg .pred yes; setp.ne.s32 yes, $1, 0; selp.b64 $0, $2, $3, yes; }"
    return code, "=l,r,l,l", (Int32(condition), first, second), Int64, True


@operation
def fence_copies():
    """Order this thread's accesses to shared memory before later copies of the copy engine to it."""
    return "fence.proxy.async.shared::cta;", "~{memory}", (), None, False
