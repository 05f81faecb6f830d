"""The two ways to launch fused KDA decode, as launch tables and compile caches name them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """`cluster` CTAs per request and head. resident: CTAs that must fit on a multiprocessor at once (limits registers).

    alone: whether no more than that may share it.
    """

    cluster: int
    resident: int
    alone: bool = False


@dataclass(frozen=True)
class Stream:
    """Persistent CTAs through which the states flow: `lanes` per head, each walking over requests."""

    lanes: int
