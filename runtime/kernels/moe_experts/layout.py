"""Humming's layout of MXFP4 weights for 16-bit activations, as a PyTorch twin: checkpoint format to layout and back.

Checkpoint: codes [E, N, K/2] uint8, the even column in the low nibble; scales [E, N, K/32] uint8. Layout:

  weight  [E, K/16, 2 N] int32: blocks of 64 rows by 16 columns, 128 words each. Word 4 (4 g + t) + f of a block holds,
          for row = 16 f + 8 h + g and column = 8 u + 2 t + p, the code at nibble 4 p + 2 h + u
  scales  [E, K/32, N] uint8: byte 8 g + c of a block of 64 rows belongs to row 8 c + g
"""

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import require

BLOCK_ROWS, BLOCK_COLUMNS, GROUP = 64, 16, 32


def pack_humming(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return (weight, scales) in Humming's layout.

    codes: [E, N, K/2] uint8, scales: [E, N, K/32] uint8, both in the checkpoint's order; N a multiple of 64, K of 32.
    For w13, N is gate rows, then up rows. Raises ValueError for other shapes.
    """
    experts, rows, half = codes.shape
    columns = 2 * half
    require(rows % BLOCK_ROWS == 0, "rows", f"a multiple of {BLOCK_ROWS}", rows)
    require(columns % GROUP == 0, "columns", f"a multiple of {GROUP}", columns)
    wanted = (experts, rows, columns // GROUP)
    require(tuple(scales.shape) == wanted, "scales", f"of shape {wanted}", tuple(scales.shape))
    # rows: block, f, h, g. bytes of a row: block, u, t; a byte holds p = 0 in its low nibble.
    split = codes.view(experts, rows // 64, 4, 2, 8, columns // 16, 2, 4)
    nibbles = torch.stack([split & 0xF, split >> 4], dim=-1)  # …, p
    ordered = nibbles.permute(0, 5, 1, 4, 7, 2, 8, 3, 6)  # expert, k block, n block, g, t, f, p, h, u
    packed = (ordered[..., 0] | (ordered[..., 1] << 4)).contiguous()
    weight = packed.flatten(-2).view(torch.int32).reshape(experts, columns // 16, 2 * rows)
    blocks = scales.transpose(1, 2).reshape(experts, columns // GROUP, rows // 64, 8, 8)
    return weight, blocks.transpose(-1, -2).reshape(experts, columns // GROUP, rows).contiguous()


def unpack_humming(weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Undo `pack_humming`."""
    experts, k_blocks, words = weight.shape
    rows, columns = words // 2, 16 * k_blocks
    packed = weight.contiguous().view(torch.uint8).view(experts, k_blocks, rows // 64, 8, 4, 4, 2, 2)
    nibbles = torch.stack([packed & 0xF, packed >> 4], dim=-1)  # expert, k, n, g, t, f, p, h, u
    ordered = nibbles.permute(0, 2, 5, 7, 3, 1, 8, 4, 6)  # expert, n, f, h, g, k, u, t, p
    codes = (ordered[..., 0] | (ordered[..., 1] << 4)).reshape(experts, rows, columns // 2)
    blocks = scales.view(torch.uint8).view(experts, columns // GROUP, rows // 64, 8, 8).transpose(-1, -2)
    return codes, blocks.reshape(experts, columns // GROUP, rows).transpose(1, 2).contiguous()
