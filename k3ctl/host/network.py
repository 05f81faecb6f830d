"""Host name resolution, the interface behind an address, and the ports that serving needs."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from k3ctl.host.types import Port

PORTS = {8000: "API", 29500: "torch rendezvous"}
RESOLVE_LIMIT_S = 0.4
_SIOCGIFADDR = 0x8915
"""ioctl of netdevice(7): an interface's (first) IPv4 address."""


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


def interface(address: str) -> str | None:
    """Name of the interface that has ``address`` (IPv4 or IPv6); None for one that is not this host's."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.version == 6:
        return next((name for number, name in _ipv6() if number == wanted), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                if fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)[20:24] == wanted.packed:
                    return name
    # a second address of an interface, which the call above does not tell, and all of 127.0.0.0/8
    return "lo" if wanted.is_loopback else None


def _ipv6() -> Iterator[tuple[ipaddress.IPv6Address, str]]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            fields = line.split()
            yield ipaddress.IPv6Address(int(fields[0], 16)), fields[-1]


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
