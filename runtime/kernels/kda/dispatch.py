"""Bind KDA decode to a call site: choose an implementation once, then call it."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

from runtime.kernels.common.launch.device import H200, Device, device_of, multiprocessors, supports_pdl
from runtime.kernels.common.launch.dispatch import AUTO, Choice, cute_or_triton, record, table_of
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.kda.shapes import Split, Stream
from runtime.kernels.kda.spec import KdaDecodeSpec, check, check_weights, unsupported

STREAM_REQUESTS = 32  # most requests of one persistent CTA


@dataclass(frozen=True)
class Launch:
    """How to launch for up to `pairs` (request, head) pairs: the fastest of the measured ways.

    split: None is the persistent kernel with all multiprocessors. settled, early_trigger: which
    promises of the call site to use, where it makes them; using one is not always faster.
    """

    pairs: float
    split: Split | None
    settled: bool
    early_trigger: bool


# Few pairs are latency-bound and want several CTAs per head; many are a stream of states. Measured where the
# operator stands, between the projections of a layer (`chain.py`): the fastest shape alone is up to 3 us slower there.
DECODE = {
    H200: {
        12: (  # a rank of TP8, and all with more than 8 heads
            Launch(24, Split(4, 2), True, True),
            Launch(48, Split(2, 2), True, True),
            Launch(96, Split(2, 2), False, False),
            Launch(inf, None, True, True),
        ),
        6: (  # a rank of TP16, and all with up to 8 heads
            Launch(6, Split(2, 2), True, True),
            Launch(12, Split(2, 2), False, False),
            Launch(24, Split(4, 2), True, True),
            Launch(inf, Split(2, 2), False, False),
        ),
    }
}
VERIFY = {H200: (Launch(32, Split(4, 1), False, False), Launch(inf, Split(2, 2), False, False))}
MEASURED_ON = frozenset({H200})


def launch(
    spec: KdaDecodeSpec, requests: int, sms: int, device: Device, streamable: bool = True
) -> tuple[Split | Stream, Overlap]:
    """(shape, overlap) of the fused kernel for a number of requests.

    sms: multiprocessors of the device. streamable: whether the caches fit the persistent kernel (see `streamable`).
    """
    decode = table_of(DECODE, device)[12 if spec.heads > 8 else 6]
    table = table_of(VERIFY, device) if spec.tokens > 1 else decode
    way = next(way for way in table if requests * spec.heads <= way.pairs)
    overlap = Overlap(spec.overlap.settled and way.settled, spec.overlap.early_trigger and way.early_trigger)
    if way.split is not None:
        return way.split, overlap
    lanes = max(1, sms // spec.heads)
    if streamable and requests <= STREAM_REQUESTS * lanes:
        return Stream(lanes), overlap
    return Split(1, 2), Overlap()


def streamable(conv_state: Tensor) -> bool:
    """Whether the copy engine can read windows: contiguous along the channels, rows aligned to 16 bytes."""
    slot, tap, channel = conv_state.stride()
    return channel == 1 and slot % 8 == 0 and tap % 8 == 0 and conv_state.data_ptr() % 16 == 0


def choose_kda_decode(spec: KdaDecodeSpec, device: Device, requested: str = AUTO) -> Choice:
    """Choose among "cute" (the fused kernel) and "triton" (the fallback)."""
    return cute_or_triton("kda_decode", unsupported(spec, device.arch), device, MEASURED_ON, requested)


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
        self._device = device_of(f_b.device)
        self.choice = choose_kda_decode(spec, self._device, provider)

    def prepare(self, max_requests: int) -> None:
        """Compile every launch that calls with 1 … `max_requests` requests make, with caches that the persistent
        kernel can read and with others, so that none compiles during a capture.
        """
        if self.choice.variant != "cute":
            return
        from runtime.kernels.kda import cute_launch

        sms = multiprocessors(self.weights[0].device.index)
        for shape, overlap in {
            launch(self.spec, requests, sms, self._device, can_stream)
            for requests in range(1, max_requests + 1)
            for can_stream in (True, False)
        }:
            cute_launch.compiled(self.spec.heads, self.spec.tokens, overlap, shape, self._device.arch)

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
            shape, overlap = launch(spec, slots.shape[0], sms, self._device, streamable(conv_state))
            cute_launch.run(*tensors, overlap=overlap, shape=shape, **numbers)
        else:
            from runtime.kernels.kda import triton_kernel

            triton_kernel.run(*tensors, pdl=supports_pdl(self._device.arch), **numbers)
        return out
