"""Bind Attention Residuals to a call site: choose an implementation once, then call it."""

from math import inf

from torch import Tensor

from runtime.kernels.attn_res.spec import AttnResSpec, check, check_weights, unsupported
from runtime.kernels.common.launch.device import arch_of, supports_pdl
from runtime.kernels.common.launch.dispatch import AUTO, Choice, cute_or_triton, record

# early_trigger -> (most tokens, CTAs per token, CTAs that share a multiprocessor): the fastest of the measured shapes.
# Seven CTAs a token win everywhere. The more tokens, the more CTAs must share a multiprocessor, so that the grids
# of overlapping calls find room; five cost registers, and pay only where four leave a grid without room.
SHAPES = {
    True: ((4, 7, 1), (16, 7, 3), (28, 7, 4), (inf, 7, 8)),
    False: ((4, 7, 1), (inf, 7, 4)),
}


def launch_shape(spec: AttnResSpec, tokens: int) -> tuple[int, int]:
    """(cluster, resident) of the cluster kernel for a number of tokens."""
    for most, cluster, resident in SHAPES[spec.overlap.early_trigger]:
        if tokens <= most and spec.hidden % (cluster * 256) == 0:
            return cluster, resident
    return next((c, 2) for c in (4, 2) if spec.hidden % (c * 256) == 0)


def choose_attn_res(spec: AttnResSpec, arch: str, requested: str = AUTO) -> Choice:
    """Choose among "cute" (the cluster kernel) and "triton" (the fallback)."""
    return cute_or_triton("attn_res", unsupported(spec, arch), arch, requested)


class AttnRes:
    """The operator at one call site, with its weights.

    score_norm, score_vec: [D] BF16, and out_norm: [D] BF16 or None, as in `reference`. provider: "auto", "cute" or
    "triton". Raises ValueError if the weights do not fit `spec` or an explicit provider cannot run.
    """

    def __init__(
        self,
        spec: AttnResSpec,
        score_norm: Tensor,
        score_vec: Tensor,
        out_norm: Tensor | None = None,
        *,
        provider: str = AUTO,
    ) -> None:
        check_weights(spec, score_norm, score_vec, out_norm)
        self.spec = spec
        self.choice = choose_attn_res(spec, arch_of(score_norm.device), provider)
        self._fixed = {
            "num_blocks": spec.num_blocks,
            "write": spec.write,
            "score_norm": score_norm,
            "score_vec": score_vec,
            "eps": spec.eps,
            "out_norm": out_norm if spec.has_norm else None,
            "out_eps": spec.out_eps,
        }

    def __call__(self, prefix: Tensor, delta: Tensor | None, blocks: Tensor, out: Tensor) -> Tensor:
        """Write the result to `out` and return it; update `prefix` (and `blocks[:, write]`) in place."""
        check(self.spec, prefix, delta, blocks, out)
        record(self.choice)
        if prefix.shape[0] == 0:
            return out
        if self.choice.variant == "cute":
            from runtime.kernels.attn_res import cute_launch

            cluster, resident = launch_shape(self.spec, prefix.shape[0])
            cute_launch.run(
                prefix,
                delta,
                blocks,
                out,
                overlap=self.spec.overlap,
                cluster=cluster,
                resident=resident,
                **self._fixed,
            )
        else:
            from runtime.kernels.attn_res import triton_kernel

            triton_kernel.run(
                prefix, delta, blocks, out, pdl=supports_pdl(arch_of(prefix.device)), **self._fixed
            )
        return out
