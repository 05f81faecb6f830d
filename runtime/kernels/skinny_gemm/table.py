"""Measured launch shapes of Kimi K3's projections, by (n, k, epilogue).

One H200, calls chained in a CUDA graph over rotating weights, cuBLAS in the same run; how and when: `docs/log.md`.
Of the pairs (warps, splits), each weight has the one with the least summed time over 1, 8, 16 and 32 rows.
"""

from runtime.kernels.skinny_gemm.plans import Bucket, Plan

PLANS: dict[tuple[int, int, str], Plan] = {
    (6288, 7168, "bf16"): Plan(  # KDA in-projection, TP8
        7,
        1,
        (
            Bucket(8, 48, 4, 1, 20.93, 25.28),
            Bucket(16, 48, 3, 1, 21.90, 25.56),
            Bucket(32, 48, 3, 1, 22.95, 25.99),
            Bucket(64, 48, 2, 1, 27.84, 25.52),
        ),
    ),
    (3648, 7168, "bf16"): Plan(  # MLA in-projection, TP8
        7,
        1,
        (
            Bucket(8, 32, 6, 1, 13.09, 20.35),
            Bucket(16, 32, 5, 1, 13.61, 19.85),
            Bucket(32, 32, 3, 1, 15.20, 20.38),
            Bucket(64, 32, 2, 1, 19.86, 20.36),
        ),
    ),
    (7168, 1536, "bf16"): Plan(  # KDA and MLA o_proj, TP8
        8,
        1,
        (
            Bucket(8, 56, 3, 1, 5.78, 8.22, True),
            Bucket(16, 56, 3, 1, 6.62, 8.29, True),
            Bucket(32, 56, 2, 1, 7.91, 8.35),
        ),
    ),
    (896, 7168, "fp32"): Plan(  # router
        7,
        4,
        (
            Bucket(8, 32, 4, 1, 4.52, 8.62, True),
            Bucket(16, 32, 4, 1, 5.16, 8.81, True),
            Bucket(32, 32, 3, 1, 5.64, 8.91),
            Bucket(64, 32, 2, 1, 7.13, 9.53),
        ),
    ),
    (3584, 7168, "bf16"): Plan(  # latent down
        8,
        2,
        (
            Bucket(8, 56, 3, 1, 12.84, 17.65),
            Bucket(16, 56, 3, 1, 13.48, 17.88),
            Bucket(32, 56, 2, 1, 15.21, 18.28),
        ),
    ),
    (7168, 3584, "bf16"): Plan(  # latent up
        8,
        1,
        (
            Bucket(8, 56, 3, 1, 12.53, 17.65),
            Bucket(16, 56, 3, 1, 13.06, 15.21),
            Bucket(32, 56, 2, 1, 14.98, 15.45),
        ),
    ),
    (1536, 7168, "bf16"): Plan(  # shared gate and up, MLA gate, TP8
        14,
        2,
        (
            Bucket(8, 24, 3, 1, 6.40, 10.53),
            Bucket(16, 24, 3, 1, 7.03, 10.74),
            Bucket(32, 24, 2, 1, 8.50, 11.03),
        ),
    ),
    (7168, 768, "bf16"): Plan(  # shared down TP8, o_proj TP16
        6,
        1,
        (
            Bucket(8, 64, 2, 2, 3.65, 5.41, True),
            Bucket(16, 80, 2, 1, 4.02, 5.45, True),
            Bucket(32, 64, 2, 2, 4.43, 5.53, True),
            Bucket(64, 64, 2, 1, 8.65, 6.12),
        ),
    ),
    (2304, 1536, "bf16"): Plan(  # MLA q_b, TP8
        8,
        1,
        (
            Bucket(8, 24, 3, 1, 2.84, 5.47, True),
            Bucket(16, 24, 3, 1, 3.19, 5.52, True),
            Bucket(32, 24, 3, 1, 3.88, 5.58),
            Bucket(64, 24, 2, 1, 5.73, 5.89),
        ),
    ),
    (8448, 7168, "bf16"): Plan(  # dense gate and up, TP8
        4,
        1,
        (
            Bucket(8, 64, 6, 1, 28.87, 30.99),
            Bucket(16, 64, 5, 1, 30.13, 32.44),
            Bucket(32, 64, 4, 1, 31.29, 32.79),
            Bucket(64, 64, 3, 1, 34.59, 33.99),
        ),
    ),
    (7168, 4224, "bf16"): Plan(  # dense down, TP8
        6,
        1,
        (
            Bucket(8, 56, 4, 1, 14.87, 20.69),
            Bucket(16, 56, 4, 1, 15.49, 18.03),
            Bucket(32, 56, 3, 1, 17.31, 18.41),
            Bucket(64, 56, 2, 1, 22.28, 18.21),
        ),
    ),
    (20480, 7168, "bf16"): Plan(  # lm_head, TP8
        4,
        1,
        (
            Bucket(8, 80, 5, 1, 68.61, 82.37),
            Bucket(16, 80, 4, 1, 70.18, 78.32),
            Bucket(32, 80, 1, 2, 71.99, 76.39),
            Bucket(64, 80, 3, 1, 80.04, 75.81),
        ),
    ),
    (3216, 7168, "bf16"): Plan(  # KDA in-projection, TP16
        8,
        2,
        (
            Bucket(8, 56, 3, 1, 11.97, 17.04),
            Bucket(16, 56, 3, 1, 12.77, 17.31),
            Bucket(32, 56, 2, 1, 14.24, 18.77),
        ),
    ),
    (2880, 7168, "bf16"): Plan(  # MLA in-projection, TP16
        14,
        1,
        (
            Bucket(8, 24, 3, 1, 10.50, 16.92),
            Bucket(16, 24, 3, 1, 11.02, 16.63),
            Bucket(32, 24, 2, 1, 12.47, 17.04),
        ),
    ),
    (768, 7168, "bf16"): Plan(  # shared gate and up, MLA gate, TP16
        7,
        8,
        (
            Bucket(8, 56, 2, 1, 4.05, 8.15, True),
            Bucket(16, 48, 2, 2, 4.27, 8.22, True),
            Bucket(32, 56, 2, 1, 5.78, 8.37),
            Bucket(64, 48, 2, 1, 11.73, 8.82),
        ),
    ),
    (7168, 384, "bf16"): Plan(  # shared down, TP16
        6,
        1,
        (
            Bucket(8, 64, 1, 1, 2.30, 4.16, True),
            Bucket(16, 64, 1, 2, 2.62, 4.21, True),
            Bucket(32, 64, 1, 2, 3.15, 4.27, True),
        ),
    ),
    (1152, 1536, "bf16"): Plan(  # MLA q_b, TP16
        6,
        4,
        (
            Bucket(8, 40, 1, 2, 2.30, 5.34, True),
            Bucket(16, 40, 1, 2, 2.54, 5.24, True),
            Bucket(32, 40, 1, 2, 2.85, 5.29, True),
        ),
    ),
    (4224, 7168, "bf16"): Plan(  # dense gate and up, TP16
        7,
        1,
        (
            Bucket(8, 32, 6, 1, 15.28, 21.60),
            Bucket(16, 32, 5, 1, 15.65, 22.25),
            Bucket(32, 32, 3, 1, 17.10, 21.40),
            Bucket(64, 32, 2, 1, 20.34, 18.86),
        ),
    ),
    (7168, 2112, "bf16"): Plan(  # dense down, TP16
        11,
        1,
        (
            Bucket(8, 56, 2, 1, 7.62, 11.01),
            Bucket(16, 56, 2, 1, 8.06, 10.62),
            Bucket(32, 56, 1, 1, 10.63, 10.70),
        ),
    ),
    (10240, 7168, "bf16"): Plan(  # lm_head, TP16
        8,
        1,
        (
            Bucket(8, 80, 2, 1, 35.05, 39.80),
            Bucket(16, 80, 2, 1, 36.43, 39.59),
            Bucket(32, 80, 1, 1, 38.80, 39.78),
        ),
    ),
    (112, 7168, "fp32"): Plan(  # router, an eighth
        7,
        8,
        (
            Bucket(8, 8, 2, 1, 1.96, 6.81, True),
            Bucket(16, 8, 2, 1, 2.13, 6.95, True),
            Bucket(32, 8, 2, 1, 2.60, 6.93, True),
        ),
    ),
    (448, 7168, "bf16"): Plan(  # latent down, an eighth
        7,
        8,
        (
            Bucket(8, 32, 2, 2, 3.13, 7.52, True),
            Bucket(16, 32, 2, 2, 3.19, 7.68, True),
            Bucket(32, 32, 2, 1, 4.49, 8.04),
            Bucket(64, 32, 2, 1, 6.13, 8.33),
        ),
    ),
    (896, 3584, "bf16"): Plan(  # latent up, an eighth
        7,
        2,
        (
            Bucket(8, 16, 4, 1, 3.09, 7.76, True),
            Bucket(16, 16, 4, 2, 3.25, 7.91, True),
            Bucket(32, 16, 4, 1, 4.12, 7.99),
            Bucket(64, 16, 3, 1, 5.64, 8.46),
        ),
    ),
    (1536, 7168, "situ"): Plan(  # shared gate and up with SiTU, TP8; cuBLAS without the activation
        8,
        1,
        (
            Bucket(8, 16, 9, 1, 6.87, 10.62),
            Bucket(16, 16, 6, 1, 7.32, 10.77),
            Bucket(32, 16, 4, 1, 8.86, 10.87),
        ),
    ),
    (768, 7168, "situ"): Plan(  # shared gate and up with SiTU, TP16; cuBLAS without the activation
        8,
        2,
        (
            Bucket(8, 16, 7, 1, 4.53, 8.13),
            Bucket(16, 16, 6, 1, 4.94, 8.29),
            Bucket(32, 16, 4, 1, 5.70, 7.99),
        ),
    ),
    (8448, 7168, "situ"): Plan(  # dense gate and up with SiTU, TP8; cuBLAS without the activation
        4,
        1,
        (
            Bucket(8, 64, 6, 1, 27.88, 29.96),
            Bucket(16, 64, 5, 1, 30.21, 30.78),
            Bucket(32, 64, 4, 1, 31.24, 32.01),
        ),
    ),
    (4224, 7168, "situ"): Plan(  # dense gate and up with SiTU, TP16; cuBLAS without the activation
        4,
        2,
        (
            Bucket(8, 64, 6, 1, 14.99, 21.63),
            Bucket(16, 64, 5, 1, 16.00, 21.86),
            Bucket(32, 64, 4, 1, 17.50, 21.33),
        ),
    ),
}
