"""Launch shapes of the routed experts' kernels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GateUp:
    """Of the first kernel.

    warps: per CTA. cluster: CTAs that share a unit of work, 1, 2 or 4. resident: CTAs that share a multiprocessor.
    depth: steps of 32 columns that a warp's loads are ahead. prefetch: whether it brings the second kernel's weights to
    the L2 cache.
    """

    warps: int
    cluster: int
    resident: int
    depth: int
    prefetch: bool = False


@dataclass(frozen=True)
class Down:
    """Of the second kernel. shares: CTAs that take turns at 64 rows of the latent; the rest as for `GateUp`.

    prefetch: whether a warp brings its whole first job to the L2 cache while it waits for the first kernel.
    """

    warps: int
    shares: int
    resident: int
    depth: int
    prefetch: bool = False
