"""Launch shapes of the weight-streaming GEMM: measured ones for Kimi K3's projections, and a rule for others.

`warps` and `splits` fix the order in which a row's products are added, so they are one pair per weight: whatever the
number of rows, a row has the same bits. Tile, ring depth and residency change with the number of rows.
"""

from dataclasses import dataclass
from functools import cache

BLOCK_BYTES = 128  # one row of one 64-column block
SHARED_BYTES = 226 * 1024  # that a CTA plans with
MULTIPROCESSORS = 132  # of the GPU that the table was measured on
ROW_BUCKETS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Bucket:
    """Launch shape for up to `rows` rows; `us` measured with `rows` rows (M = 8 for the first bucket).

    direct: whether activations go straight to registers (see `cute_kernel`).
    us, cublas_us: of this kernel and of cuBLAS in the same run, one H200; None if not measured.
    """

    rows: int
    tile: int
    depth: int
    resident: int
    us: float | None = None
    cublas_us: float | None = None
    direct: bool = False


@dataclass(frozen=True)
class Plan:
    """Launch shapes of one weight: warps per CTA, CTAs per tile, and the rest by number of rows."""

    warps: int
    splits: int
    buckets: tuple[Bucket, ...]

    def bucket(self, rows: int) -> Bucket | None:
        """The smallest bucket that holds `rows` rows."""
        return next((b for b in self.buckets if rows <= b.rows), None)


def ring_depth(k: int, tile: int, rows: int, warps: int, splits: int, resident: int) -> int:
    """Slots of a warp's ring that fit shared memory; 0 if none does."""
    exchange = tile * rows * 4 if splits > 1 else 0
    room = SHARED_BYTES // resident - exchange - 3072
    depth = min(k // 64 // splits // warps, room // (warps * (tile + rows) * BLOCK_BYTES))
    return depth if rows <= 32 * depth else 0  # the ring later holds the warps' partial sums


@cache
def default_plan(n: int, k: int, epilogue: str) -> Plan | None:
    """A plan for a weight that was not measured: most CTAs in one wave, then most of the weight requested ahead."""
    best, found = None, None
    step = 16 if epilogue == "situ" else 8
    for splits in (1, 2, 4, 8):
        for warps in (8, 7, 6, 12, 14, 11, 4, 3, 2, 1):
            if k // 64 % splits or k // 64 // splits % warps:
                continue
            for tile in range(step, 161, step):
                buckets = _buckets(n, k, tile, warps, splits, epilogue)
                if not buckets:
                    continue
                ctas = -(-n // tile) * splits
                waves = -(-ctas // MULTIPROCESSORS)
                busy = ctas / (waves * MULTIPROCESSORS) - 0.1 * (waves - 1)
                score = (busy, min(1.0, buckets[0].depth * warps * splits * 64 / k), -splits)
                if best is None or score > best:
                    best, found = score, Plan(warps, splits, buckets)
    return found


def _buckets(n, k, tile, warps, splits, epilogue):
    if epilogue == "situ" and n % tile:
        return ()
    buckets = []
    for rows in ROW_BUCKETS:
        depth = ring_depth(k, tile, rows, warps, splits, 1) if rows >= splits and tile * rows <= 5120 else 0
        if depth:
            buckets.append(Bucket(rows, tile, depth, 1))
    return tuple(buckets)
