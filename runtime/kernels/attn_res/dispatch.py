"""Bind Attention Residuals to a call site: choose an implementation once, then call it."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

from runtime.kernels.attn_res.spec import AttnResSpec, check, check_weights, unsupported
from runtime.kernels.common.launch.device import H200, Device, device_of, supports_pdl
from runtime.kernels.common.launch.dispatch import AUTO, Choice, cute_or_triton, record, table_of


@dataclass(frozen=True)
class Launch:
    """How to launch for up to `most_tokens` tokens.

    cluster: CTAs per token. resident: CTAs that share a multiprocessor.
    """

    most_tokens: float
    cluster: int
    resident: int


MEASURED_ON = frozenset({H200})
# product -> early_trigger -> the fastest of the measured shapes.
# Seven CTAs a token win everywhere. The more tokens, the more CTAs must share a multiprocessor, so that the grids
# of overlapping calls find room; five cost registers, and pay only where four leave a grid without room.
SHAPES = {
    H200: {
        True: (Launch(4, 7, 1), Launch(16, 7, 3), Launch(28, 7, 4), Launch(inf, 7, 8)),
        False: (Launch(4, 7, 1), Launch(inf, 7, 4)),
    }
}


def launch_shape(spec: AttnResSpec, tokens: int, device: Device) -> Launch:
    """How the cluster kernel is launched for a number of tokens."""
    for launch in table_of(SHAPES, device)[spec.overlap.early_trigger]:
        if tokens <= launch.most_tokens and spec.hidden % (launch.cluster * 256) == 0:
            return launch
    return next(Launch(inf, c, 2) for c in (4, 2) if spec.hidden % (c * 256) == 0)


def choose_attn_res(spec: AttnResSpec, device: Device, requested: str = AUTO) -> Choice:
    """Choose among "cute" (the cluster kernel) and "triton" (the fallback)."""
    return cute_or_triton("attn_res", unsupported(spec, device.arch), device, MEASURED_ON, requested)


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
        self._device = device_of(score_norm.device)
        self.choice = choose_attn_res(spec, self._device, provider)
        self._fixed = {
            "num_blocks": spec.num_blocks,
            "write": spec.write,
            "score_norm": score_norm,
            "score_vec": score_vec,
            "eps": spec.eps,
            "out_norm": out_norm if spec.has_norm else None,
            "out_eps": spec.out_eps,
        }

    def prepare(self, max_rows: int) -> None:
        """Compile every launch that calls with 1 … `max_rows` tokens make, so that none compiles during a capture."""
        if self.choice.variant != "cute":
            return
        from runtime.kernels.attn_res import cute_launch

        s, launches = self.spec, {launch_shape(self.spec, n, self._device) for n in range(1, max_rows + 1)}
        for cluster, resident in sorted({(launch.cluster, launch.resident) for launch in launches}):
            site = (s.hidden, s.num_blocks, s.write, s.has_delta, s.has_norm, s.overlap)
            cute_launch.compiled(*site, cluster, resident, self._device.arch)

    def __call__(self, prefix: Tensor, delta: Tensor | None, blocks: Tensor, out: Tensor) -> Tensor:
        """Write the result to `out` and return it; update `prefix` (and `blocks[:, write]`) in place."""
        check(self.spec, prefix, delta, blocks, out)
        record(self.choice)
        if prefix.shape[0] == 0:
            return out
        if self.choice.variant == "cute":
            from runtime.kernels.attn_res import cute_launch

            launch = launch_shape(self.spec, prefix.shape[0], self._device)
            cute_launch.run(
                prefix,
                delta,
                blocks,
                out,
                overlap=self.spec.overlap,
                cluster=launch.cluster,
                resident=launch.resident,
                **self._fixed,
            )
        else:
            from runtime.kernels.attn_res import triton_kernel

            triton_kernel.run(prefix, delta, blocks, out, pdl=supports_pdl(self._device.arch), **self._fixed)
        return out
