"""MXFP4 weights in Humming's layout as operands of the tensor cores (device code).

A block is 64 rows by 16 columns of one expert in 512 bytes; lane (g, t) = (lane // 4, lane % 4) finds the four
fragments of 16 rows in its 16 bytes, one 32-bit word each (`layout.py`). In a word, nibble q holds columns 2t and
nibble q + 4 column 2t + 1 of row g + 8 (q // 2), the columns 8 further on where q is odd: exactly the pairs that
mma.m16n8k16 wants of its A operand.

E2M1 becomes BF16 by placing the sign at bit 15 and the magnitude at bits 8..6: a BF16 number 2^-126 times too
small, 0.5 as a subnormal. One product with 2^(s - 1) restores it and applies the E8M0 scale s exactly. Per word:
one shift, and for each pair an AND, an integer product that copies the nibble to both places, an AND and a
BF16x2 product. Scales above 128 would overflow the factor: `spec.check_scales` refuses them.
"""

import cutlass
from cutlass import Uint32, cute

from runtime.kernels.common.launch.cute_ops import mma_bf16, multiply_add, permute_bytes, scale_bf16

FRAGMENTS = 4  # of 16 rows in a block
BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_WORDS = 64, 16, 128
GROUP = 32  # columns that share a scale: two blocks


@cute.jit
def factors(scales, fragment: cutlass.Constexpr, place):
    """BF16x2 factors 2^(s - 1) of rows g and g + 8 of a fragment; `scales`: the lane's two words of eight bytes.

    place: 128, which moves a byte to a BF16's exponent. Known when compiling, the product would become a shift-add on
    the integer pipe, which is the busiest; unknown, it stays on the multiplier's.
    """
    result = []
    for half in cutlass.range_constexpr(2):
        byte = 2 * (fragment % 2) + half
        pair = permute_bytes(scales[fragment // 2], Uint32(0), 0x4040 | (byte << 8) | byte)
        result.append(multiply_add(pair, place, 0x3F003F00))
    return result


@cute.jit
def operand(word, low, high):
    """The A operand of a fragment's word: BF16x2 words of (g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8)."""
    upper = word >> Uint32(8)
    pairs = []
    for q in cutlass.range_constexpr(4):
        source = word if q < 2 else upper
        shift = 4 * (q % 2)
        nibbles = source & Uint32(0x000F000F << shift)
        bits = (nibbles * Uint32(0x1040 >> shift)) & Uint32(0x81C081C0)
        pairs.append(scale_bf16(bits, low if q < 2 else high))
    return pairs[0], pairs[2], pairs[1], pairs[3]


@cute.jit
def multiply(words, scales, tokens, sums, first: cutlass.Constexpr, place):
    """Add two blocks, 64 rows by 32 columns, times eight tokens to fragments `first`… of `sums`.

    words: eight, of the two blocks. scales: two. tokens: four BF16x2 words, the B operands of the two blocks. place:
    see `factors`.
    """
    for fragment in cutlass.range_constexpr(FRAGMENTS):
        low, high = factors(scales, fragment, place)
        total = tuple(sums[first + fragment, j] for j in range(4))
        for half in cutlass.range_constexpr(2):
            a = operand(words[4 * half + fragment], low, high)
            total = mma_bf16(a, (tokens[2 * half], tokens[2 * half + 1]), total)
        for j in cutlass.range_constexpr(4):
            sums[first + fragment, j] = total[j]
