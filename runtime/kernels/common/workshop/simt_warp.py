"""What the lanes of a warp do together, for the CPU simulator of device code (`simt`): BF16 words and tensor cores."""

from typing import Any

import numpy as np
import torch


def unpack(words: tuple[int, ...]) -> tuple[float, ...]:
    """The values of BF16x2 words, in memory order."""
    halves = np.array(words, dtype=np.uint32).view(np.uint16).astype(np.uint32) << 16
    return tuple(float(v) for v in halves.view(np.float32))


def pack(values: tuple[float, ...]) -> tuple[int, ...]:
    """BF16x2 words of an even number of values, rounded to nearest even."""
    rounded = torch.tensor(values, dtype=torch.float32).bfloat16()
    return tuple(int(word) for word in rounded.view(torch.int16).numpy().view(np.uint32))


_LANE = np.arange(32)[:, None]
_G, _T, _E = _LANE // 4, _LANE % 4, np.arange(2)
# rows and columns of a lane's values, in the order of its words
_A = (
    np.concatenate([_G + 8 * (j % 2) + 0 * _E for j in range(4)], 1),
    np.concatenate([2 * _T + 8 * (j // 2) + _E for j in range(4)], 1),
)
_B = np.concatenate([2 * _T + 8 * j + _E for j in range(2)], 1), np.broadcast_to(_G, (32, 4))
_C = (
    np.concatenate([_G + 8 * h + 0 * _E for h in range(2)], 1),
    np.concatenate([2 * _T + _E for _ in range(2)], 1),
)


def multiply_tiles(lanes: list[Any]) -> list[tuple[float, ...]]:
    """m16n8k16 of 32 lanes' (a, b, c): the sums of every lane, by the layout of the PTX manual."""
    words = np.array([(*words_a, *words_b) for words_a, words_b, _ in lanes], dtype=np.uint32)
    values = (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    a[_A], b[_B] = values[:, :8], values[:, 8:]
    c[_C] = [sums for _, _, sums in lanes]
    with np.errstate(invalid="ignore"):
        c = c + a @ b
    return [tuple(sums) for sums in c[_C].tolist()]


def read_matrices(pointers: list[Any], transposed: bool) -> list[tuple[int, ...]]:
    """Four 8x8 BF16 matrices whose rows 32 lanes point to: the four words of every lane."""
    rows = [np.frombuffer(pointer.read(16), dtype=np.uint16) for pointer in pointers]
    for pointer in pointers:
        assert pointer.offset % 16 == 0, "a row of a matrix is not aligned"
    matrices = np.stack(rows).reshape(4, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    words = np.ascontiguousarray(matrices).view(np.uint32)  # [matrix, row, pair]
    return [tuple(int(words[i, lane // 4, lane % 4]) for i in range(4)) for lane in range(32)]
