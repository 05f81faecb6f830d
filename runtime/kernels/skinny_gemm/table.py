"""Measured launch shapes of Kimi K3's projections, by product and (n, k, epilogue).

One H200, calls chained in a CUDA graph over rotating weights, cuBLAS in the same run: the times are those of the last
run of `docs/log.md`, the shapes the fastest of its tuning runs. One pair (warps, splits) serves all rows of a weight.
"""

from runtime.kernels.common.launch.device import H200
from runtime.kernels.skinny_gemm.plans import Bucket, Plan

_H200: dict[tuple[int, int, str], Plan] = {
    (6288, 7168, "bf16"): Plan(  # KDA in-projection, TP8
        7,
        1,
        (
            Bucket(8, 48, 4, 1, 21.33, 25.49),
            Bucket(16, 48, 3, 1, 22.07, 25.70),
            Bucket(32, 48, 3, 1, 23.15, 26.09),
            Bucket(64, 48, 2, 1, 28.76, 25.44),
        ),
    ),
    (3648, 7168, "bf16"): Plan(  # MLA in-projection, TP8
        7,
        1,
        (
            Bucket(8, 32, 6, 1, 13.12, 18.80),
            Bucket(16, 32, 5, 1, 13.43, 19.26),
            Bucket(32, 32, 3, 1, 15.18, 19.61),
            Bucket(64, 32, 2, 1, 19.18, 20.26),
        ),
    ),
    (7168, 1536, "bf16"): Plan(  # KDA and MLA o_proj, TP8
        8,
        1,
        (
            Bucket(8, 56, 3, 1, 5.83, 8.21, True),
            Bucket(16, 56, 3, 1, 6.69, 8.18, True),
            Bucket(32, 56, 2, 1, 7.91, 8.29),
        ),
    ),
    (896, 7168, "fp32"): Plan(  # router
        7,
        4,
        (
            Bucket(8, 32, 4, 1, 4.58, 8.65, True),
            Bucket(16, 32, 4, 1, 5.24, 8.80, True),
            Bucket(32, 32, 3, 1, 5.71, 8.97),
            Bucket(64, 32, 2, 1, 7.09, 9.71),
        ),
    ),
    (3584, 7168, "bf16"): Plan(  # latent down
        8,
        2,
        (
            Bucket(8, 56, 3, 1, 12.59, 17.53),
            Bucket(16, 56, 3, 1, 13.23, 17.71),
            Bucket(32, 56, 2, 1, 15.25, 18.31),
        ),
    ),
    (7168, 3584, "bf16"): Plan(  # latent up
        8,
        1,
        (
            Bucket(8, 56, 3, 1, 12.62, 17.76),
            Bucket(16, 56, 3, 1, 13.16, 15.31),
            Bucket(32, 56, 2, 1, 14.97, 15.54),
        ),
    ),
    (1536, 7168, "bf16"): Plan(  # shared gate and up, MLA gate, TP8
        14,
        2,
        (
            Bucket(8, 24, 3, 1, 6.39, 10.64),
            Bucket(16, 24, 3, 1, 7.04, 10.76),
            Bucket(32, 24, 2, 1, 8.54, 10.96),
        ),
    ),
    (7168, 768, "bf16"): Plan(  # shared down TP8, o_proj TP16
        6,
        1,
        (
            Bucket(8, 64, 2, 2, 3.72, 5.43, True),
            Bucket(16, 80, 2, 1, 4.10, 5.44, True),
            Bucket(32, 64, 2, 2, 4.50, 5.53, True),
            Bucket(64, 64, 2, 1, 7.60, 5.83),
        ),
    ),
    (2304, 1536, "bf16"): Plan(  # MLA q_b, TP8
        8,
        1,
        (
            Bucket(8, 24, 3, 1, 2.94, 5.56, True),
            Bucket(16, 24, 3, 1, 3.35, 5.57, True),
            Bucket(32, 24, 3, 1, 4.00, 5.63),
            Bucket(64, 24, 2, 1, 5.72, 5.69),
        ),
    ),
    (8448, 7168, "bf16"): Plan(  # dense gate and up, TP8
        4,
        1,
        (
            Bucket(8, 64, 6, 1, 28.31, 30.05),
            Bucket(16, 64, 5, 1, 29.36, 30.33),
            Bucket(32, 64, 4, 1, 30.21, 30.75),
            Bucket(64, 64, 3, 1, 33.40, 32.88),
        ),
    ),
    (7168, 4224, "bf16"): Plan(  # dense down, TP8
        6,
        1,
        (
            Bucket(8, 56, 4, 1, 14.64, 19.91),
            Bucket(16, 56, 4, 1, 15.39, 17.43),
            Bucket(32, 56, 3, 1, 16.95, 17.74),
            Bucket(64, 56, 2, 1, 21.91, 17.97),
        ),
    ),
    (20480, 7168, "bf16"): Plan(  # lm_head, TP8
        4,
        1,
        (
            Bucket(8, 80, 5, 1, 66.62, 78.27),
            Bucket(16, 80, 4, 1, 68.36, 74.32),
            Bucket(32, 80, 1, 2, 69.90, 74.30),
            Bucket(64, 80, 3, 1, 76.41, 76.62),
        ),
    ),
    (3216, 7168, "bf16"): Plan(  # KDA in-projection, TP16
        8,
        2,
        (
            Bucket(8, 56, 3, 1, 11.90, 17.50),
            Bucket(16, 56, 3, 1, 12.65, 17.72),
            Bucket(32, 56, 2, 1, 14.15, 17.92),
        ),
    ),
    (2880, 7168, "bf16"): Plan(  # MLA in-projection, TP16
        14,
        1,
        (
            Bucket(8, 24, 3, 1, 10.47, 15.99),
            Bucket(16, 24, 3, 1, 11.15, 16.31),
            Bucket(32, 24, 2, 1, 12.66, 16.83),
        ),
    ),
    (768, 7168, "bf16"): Plan(  # shared gate and up, MLA gate, TP16
        7,
        8,
        (
            Bucket(8, 56, 2, 1, 4.13, 8.13, True),
            Bucket(16, 48, 2, 2, 4.33, 8.27, True),
            Bucket(32, 56, 2, 1, 5.86, 8.39),
            Bucket(64, 48, 2, 1, 9.91, 8.54),
        ),
    ),
    (7168, 384, "bf16"): Plan(  # shared down, TP16
        6,
        1,
        (
            Bucket(8, 64, 1, 1, 2.48, 4.20, True),
            Bucket(16, 64, 1, 2, 2.73, 4.23, True),
            Bucket(32, 64, 1, 2, 3.25, 4.31, True),
        ),
    ),
    (1152, 1536, "bf16"): Plan(  # MLA q_b, TP16
        6,
        4,
        (
            Bucket(8, 40, 1, 2, 2.29, 5.32, True),
            Bucket(16, 40, 1, 2, 2.56, 5.26, True),
            Bucket(32, 40, 1, 2, 2.84, 5.31, True),
        ),
    ),
    (4224, 7168, "bf16"): Plan(  # dense gate and up, TP16
        7,
        1,
        (
            Bucket(8, 32, 6, 1, 15.12, 21.01),
            Bucket(16, 32, 5, 1, 15.17, 21.12),
            Bucket(32, 32, 3, 1, 16.72, 20.33),
            Bucket(64, 32, 2, 1, 19.56, 18.28),
        ),
    ),
    (7168, 2112, "bf16"): Plan(  # dense down, TP16
        11,
        1,
        (
            Bucket(8, 56, 2, 1, 7.59, 10.03),
            Bucket(16, 56, 2, 1, 8.09, 10.14),
            Bucket(32, 56, 1, 1, 10.45, 10.30),
        ),
    ),
    (10240, 7168, "bf16"): Plan(  # lm_head, TP16
        8,
        1,
        (
            Bucket(8, 80, 2, 1, 34.03, 37.66),
            Bucket(16, 80, 2, 1, 35.18, 37.58),
            Bucket(32, 80, 1, 1, 37.24, 37.95),
        ),
    ),
    (112, 7168, "fp32"): Plan(  # router, an eighth
        7,
        8,
        (
            Bucket(8, 8, 2, 1, 1.94, 6.85, True),
            Bucket(16, 8, 2, 1, 2.12, 6.97, True),
            Bucket(32, 8, 2, 1, 2.58, 7.07, True),
            Bucket(64, 8, 2, 1, 3.57, 7.08),
        ),
    ),
    (448, 7168, "bf16"): Plan(  # latent down, an eighth
        7,
        8,
        (
            Bucket(8, 32, 2, 2, 3.15, 7.52, True),
            Bucket(16, 32, 2, 2, 3.33, 7.68, True),
            Bucket(32, 32, 2, 1, 4.32, 7.77),
            Bucket(64, 32, 2, 1, 5.39, 8.01),
        ),
    ),
    (896, 3584, "bf16"): Plan(  # latent up, an eighth
        7,
        2,
        (
            Bucket(8, 16, 4, 1, 3.19, 7.87, True),
            Bucket(16, 16, 4, 2, 3.36, 7.99, True),
            Bucket(32, 16, 4, 1, 4.19, 7.98),
            Bucket(64, 16, 3, 1, 5.25, 8.29),
        ),
    ),
    (1536, 7168, "situ"): Plan(  # shared gate and up with SiTU, TP8; cuBLAS without the activation
        8,
        1,
        (
            Bucket(8, 16, 9, 1, 7.03, 10.62),
            Bucket(16, 16, 6, 1, 7.43, 10.77),
            Bucket(32, 16, 4, 1, 8.72, 10.87),
        ),
    ),
    (768, 7168, "situ"): Plan(  # shared gate and up with SiTU, TP16; cuBLAS without the activation
        8,
        2,
        (
            Bucket(8, 16, 7, 1, 4.61, 8.13),
            Bucket(16, 16, 6, 1, 4.98, 8.29),
            Bucket(32, 16, 4, 1, 5.64, 7.99),
        ),
    ),
    (8448, 7168, "situ"): Plan(  # dense gate and up with SiTU, TP8; cuBLAS without the activation
        4,
        1,
        (
            Bucket(8, 64, 6, 1, 28.27, 29.96),
            Bucket(16, 64, 5, 1, 29.07, 30.78),
            Bucket(32, 64, 4, 1, 29.97, 32.01),
        ),
    ),
    (4224, 7168, "situ"): Plan(  # dense gate and up with SiTU, TP16; cuBLAS without the activation
        4,
        2,
        (
            Bucket(8, 64, 6, 1, 14.65, 21.63),
            Bucket(16, 64, 5, 1, 15.20, 21.86),
            Bucket(32, 64, 4, 1, 16.57, 21.33),
        ),
    ),
}

PLANS = {H200: _H200}
