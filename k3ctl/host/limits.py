"""Resource limits of this process, which the engine inherits."""

from __future__ import annotations

import resource

from k3ctl.host.types import UNLIMITED


def memlock_bytes() -> int:
    """``ulimit -l`` in bytes; UNLIMITED without a bound."""
    return _soft(resource.RLIMIT_MEMLOCK)


def nofile() -> int:
    """``ulimit -n``; UNLIMITED without a bound."""
    return _soft(resource.RLIMIT_NOFILE)


def _soft(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft
