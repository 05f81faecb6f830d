"""Bind KDA decode to a call site: choose an implementation once, then call it."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

from runtime.kernels.common.launch.device import arch_of, multiprocessors, supports_pdl
from runtime.kernels.common.launch.dispatch import AUTO, Choice, cute_or_triton, record
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.kda.spec import KdaDecodeSpec, check, check_weights, unsupported

STREAM_REQUESTS = 32  # most requests of one persistent CTA


@dataclass(frozen=True)
class Launch:
    """How to launch for up to `pairs` (request, head) pairs: the fastest of the measured ways.

    shape: see `cute_launch.run`; None is the persistent kernel with all multiprocessors. settled, early_trigger: which
    promises of the call site to use, where it makes them; using one is not always faster.
    """

    pairs: float
    shape: tuple | None
    settled: bool
    early_trigger: bool


# Few pairs are latency-bound and want several CTAs per head; many are a stream of states. Measured where the
# operator stands, between the projections of a layer (`chain.py`): the fastest shape alone is up to 3 us slower there.
DECODE = {
    12: (  # a rank of TP8, and all with more than 8 heads
        Launch(24, (4, 2, False), True, True),
        Launch(48, (2, 2, False), True, True),
        Launch(96, (2, 2, False), False, False),
        Launch(inf, None, True, True),
    ),
    6: (  # a rank of TP16, and all with up to 8 heads
        Launch(6, (2, 2, False), True, True),
        Launch(12, (2, 2, False), False, False),
        Launch(24, (4, 2, False), True, True),
        Launch(inf, (2, 2, False), False, False),
    ),
}
VERIFY = (Launch(32, (4, 1, False), False, False), Launch(inf, (2, 2, False), False, False))


def launch(spec: KdaDecodeSpec, requests: int, sms: int, streamable: bool = True) -> tuple[tuple, Overlap]:
    """(shape, overlap) of the fused kernel for a number of requests (see `cute_launch.run`).

    streamable: whether the caches fit the persistent kernel (see `streamable`).
    """
    table = VERIFY if spec.tokens > 1 else DECODE[12 if spec.heads > 8 else 6]
    way = next(way for way in table if requests * spec.heads <= way.pairs)
    overlap = Overlap(spec.overlap.settled and way.settled, spec.overlap.early_trigger and way.early_trigger)
    if way.shape is not None:
        return way.shape, overlap
    lanes = max(1, sms // spec.heads)
    if streamable and requests <= STREAM_REQUESTS * lanes:
        return ("stream", lanes), overlap
    return (1, 2, False), Overlap()


def streamable(conv_state: Tensor) -> bool:
    """Whether the copy engine can read windows: contiguous along the channels, rows aligned to 16 bytes."""
    slot, tap, channel = conv_state.stride()
    return channel == 1 and slot % 8 == 0 and tap % 8 == 0 and conv_state.data_ptr() % 16 == 0


def choose_kda_decode(spec: KdaDecodeSpec, arch: str, requested: str = AUTO) -> Choice:
    """Choose among "cute" (the fused kernel) and "triton" (the fallback)."""
    return cute_or_triton("kda_decode", unsupported(spec, arch), arch, requested)


class KdaDecode:
    """The operator at one call site, with its weights (see `spec.check_weights` for their shapes).

    provider: "auto", "cute" or "triton". Raises ValueError if the weights do not fit `spec` or an explicit provider
    cannot run.
    """

    def __init__(
        self,
        spec: KdaDecodeSpec,
        f_b: Tensor,
        conv_weight: Tensor,
        A_log: Tensor,
        dt_bias: Tensor,
        norm_weight: Tensor,
        *,
        provider: str = AUTO,
    ) -> None:
        check_weights(spec, f_b, conv_weight, A_log, dt_bias, norm_weight)
        self.spec = spec
        self.weights = (f_b, conv_weight, A_log, dt_bias, norm_weight)
        self.choice = choose_kda_decode(spec, arch_of(f_b.device), provider)

    def __call__(
        self,
        projected: Tensor,
        conv_state: Tensor,
        state: Tensor,
        slots: Tensor,
        out: Tensor,
        accepted: Tensor | None = None,
    ) -> Tensor:
        """Write the outputs to `out` and return it; update `conv_state` and `state` in place.

        Shapes and meaning as in `composed.kda_decode_composed`; requirements on the layout in `spec.check`.
        """
        spec = self.spec
        check(spec, projected, conv_state, state, slots, accepted, out)
        record(self.choice)
        if slots.shape[0] == 0:
            return out
        tensors = (
            projected,
            self.weights,
            conv_state,
            state,
            slots,
            slots[:, 0] if accepted is None else accepted,
            out,
        )
        numbers = {"lower_bound": spec.lower_bound, "eps": spec.eps}
        if self.choice.variant == "cute":
            from runtime.kernels.kda import cute_launch

            sms = multiprocessors(projected.device.index)
            shape, overlap = launch(spec, slots.shape[0], sms, streamable(conv_state))
            cute_launch.run(*tensors, overlap=overlap, shape=shape, **numbers)
        else:
            from runtime.kernels.kda import triton_kernel

            triton_kernel.run(*tensors, pdl=supports_pdl(arch_of(projected.device)), **numbers)
        return out
