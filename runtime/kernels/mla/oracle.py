"""NoPE latent attention in NumPy and FP64: what the forms and kernels are compared with, sharing nothing with them.

Keys and values are expanded per head, as the model is defined; nothing is absorbed, split or merged.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., K] normalised over its last axis, times weight [K]."""
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


def softmax(scores: Array) -> tuple[Array, Array]:
    """Weights over the last axis and their log-sum-exp; a row of -inf has zeros and -inf."""
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    exps = np.exp(scores - np.where(np.isinf(top), 0.0, top))
    total = exps.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.log(total) + top, -np.inf)
    return exps / np.where(total > 0, total, 1.0), lse[..., 0]


def expanded(
    q: Array, rows: Array, w_uk: Array, w_uv: Array, visible: NDArray[np.bool_], scale: float
) -> tuple[Array, Array]:
    """q [T, N, dn+dr], rows [S, L+dr], w_uk [N, dn, L], w_uv [N, dv, L], visible [T, S] → [T, N, dv], lse [T, N].

    Rows that a query does not see may hold anything.
    """
    latent, tokens = w_uk.shape[2], len(q)
    values, lses = np.zeros((tokens, len(w_uk), w_uv.shape[1])), np.full((tokens, len(w_uk)), -np.inf)
    for n in range(len(w_uk)):
        for t in range(tokens):
            seen = rows[visible[t]]
            keys = np.concatenate([seen[:, :latent] @ w_uk[n].T, seen[:, latent:]], axis=1)
            weights, lses[t, n] = softmax(scale * (keys @ q[t, n]))
            values[t, n] = weights @ (seen[:, :latent] @ w_uv[n].T)
    return values, lses


def latent(
    query: Array, rows: Array, visible: NDArray[np.bool_], scale: float, columns: int
) -> tuple[Array, Array]:
    """The part between the projections: query [T, N, L+dr], rows [S, L+dr], visible [T, S] → o [T, N, L], lse [T, N].

    columns: L, what of a row is its value.
    """
    o, lses = np.zeros((*query.shape[:2], columns)), np.full(query.shape[:2], -np.inf)
    for t in range(len(query)):
        seen = rows[visible[t]]
        for n in range(query.shape[1]):
            weights, lses[t, n] = softmax(scale * (seen @ query[t, n]))
            o[t, n] = weights @ seen[:, :columns]
    return o, lses
