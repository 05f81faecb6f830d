"""Bind KDA decode to a call site: choose an implementation once, then call it."""

from torch import Tensor

from runtime.kernels.common.device import arch_of, missing_packages, multiprocessors, supports_pdl
from runtime.kernels.common.dispatch import AUTO, Choice, Variant, choose, record
from runtime.kernels.kda_decode.spec import KdaDecodeSpec, check, check_weights, unsupported

STREAM_REQUESTS = 32  # most requests of one persistent CTA

# (most (request, head) pairs, (CTAs per head, CTAs that must fit a multiprocessor, whether no more may)): the fastest
# of the measured shapes. Few pairs are latency-bound and want several CTAs per head; many are a stream of states.
DECODE = ((16, (4, 2, False)), (64, (2, 2, False)))
VERIFY = ((32, (4, 1, False)), (None, (2, 2, False)))


def launch_shape(spec: KdaDecodeSpec, requests: int, sms: int, streamable: bool = True) -> tuple:
    """Launch shape (see `cute_launch.run`) of the fused kernel for a number of requests.

    streamable: whether the caches fit the persistent kernel (see `streamable`).
    """
    pairs = requests * spec.heads
    for most, shape in VERIFY if spec.tokens > 1 else DECODE:
        if most is None or pairs <= most:
            return shape
    lanes = max(1, sms // spec.heads)
    return ("stream", lanes) if streamable and requests <= STREAM_REQUESTS * lanes else (1, 2, False)


def streamable(conv_state: Tensor) -> bool:
    """Whether the copy engine can read windows: contiguous along the channels, rows aligned to 16 bytes."""
    slot, tap, channel = conv_state.stride()
    return channel == 1 and slot % 8 == 0 and tap % 8 == 0 and conv_state.data_ptr() % 16 == 0


def choose_kda_decode(spec: KdaDecodeSpec, arch: str, requested: str = AUTO) -> Choice:
    """Choose among "cute" (the fused kernel) and "triton" (the fallback)."""
    variants = (
        Variant(
            "cute",
            (*unsupported(spec, arch), *missing_packages("cutlass")),
            "measured faster than triton at every batch",
        ),
        Variant("triton", missing_packages("triton"), fallback=True),
    )
    return choose("kda_decode", variants, requested)


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
            from runtime.kernels.kda_decode import cute_launch

            sms = multiprocessors(projected.device.index)
            shape = launch_shape(spec, slots.shape[0], sms, streamable(conv_state))
            cute_launch.run(*tensors, overlap=spec.overlap, shape=shape, **numbers)
        else:
            from runtime.kernels.kda_decode import triton_kernel

            triton_kernel.run(*tensors, pdl=supports_pdl(arch_of(projected.device)), **numbers)
        return out
