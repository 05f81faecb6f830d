"""Host name resolution and the ports that serving needs."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

from k3ctl.host.types import Port

PORTS = {8000: "API", 29500: "torch rendezvous"}
RESOLVE_LIMIT_S = 0.4


def addresses(name: str, limit_s: float = RESOLVE_LIMIT_S) -> tuple[str, ...] | None:
    """Addresses of ``name``; empty: it does not resolve, None: the resolver does not answer in time."""
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        found = pool.submit(socket.getaddrinfo, name, None, 0, socket.SOCK_STREAM).result(timeout=limit_s)
    except OSError:
        return ()
    except FutureTimeout:
        return None
    finally:
        pool.shutdown(wait=False)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def ports(numbers: Iterable[tuple[int, str]] = tuple(PORTS.items())) -> tuple[Port, ...]:
    """Whether each port can be bound on this host now."""
    return tuple(Port(number=number, role=role, free=_bindable(number)) for number, role in numbers)


def _bindable(number: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True
