"""What a node tells of itself before anything starts: versions, configuration, addresses, its machine."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from k3ctl import __version__
from k3ctl.engine import preflight, procs, rundir
from k3ctl.errors import UsageError
from k3ctl.profiles.resolve import ResolvedConfig

OWN = frozenset(
    {
        "env.VLLM_HOST_IP",
        "env.CUDA_VISIBLE_DEVICES",
        "env.GLOO_SOCKET_IFNAME",
        "env.NCCL_SOCKET_IFNAME",
        "env.NCCL_IB_HCA",
    }
)
"""Values that are a node's own: they may differ."""


def tell(resolved: ResolvedConfig, *, any_version: bool) -> dict[str, Any]:
    """Everything but the machine.

    Raises:
        UsageError, MachineError: this node cannot serve the configuration at all.
    """
    python = preflight.interpreter()
    if not any_version:
        preflight.version(python, resolved.profile)
    if not resolved.needs_generated_model:
        preflight.model_directory(resolved.model)
    return {
        "hostname": socket.gethostname(),
        "address": address(os.environ),
        "place": place(),
        "versions": {
            "k3ctl": __version__,
            "python": ".".join(map(str, python.python[:2])),
            "vllm": python.vllm,
            "torch": python.torch,
        },
        "profile": digest([text for _, text in resolved.profile.texts]),
        "values": {key: digest(value) for key, value in values(resolved) if key not in OWN},
    }


def digest(value: Any) -> str:
    """Of anything that JSON can hold: two nodes compare values without telling them."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def values(resolved: ResolvedConfig) -> Iterator[tuple[str, Any]]:
    """Every value that the engine would get, by dotted key."""
    yield "model", resolved.model
    yield from _leaves("", resolved.args)
    yield from _leaves("env.", resolved.env)


def _leaves(before: str, mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(f"{before}{key}.", value)
        else:
            yield f"{before}{key}", value


def address(environ: Mapping[str, str]) -> str:
    """The address of this host at which the ssh came in: one that others reach; empty without one."""
    fields = environ.get("SSH_CONNECTION", "").split()
    return fields[2].partition("%")[0] if len(fields) == 4 else ""


def place() -> str:
    """What two names of one and the same node have in common."""
    network = ""
    with suppress(OSError):
        network = str(Path("/proc/self/ns/net").readlink())
    return digest([procs.boot_id(), network, os.getuid(), str(rundir.state_root())])


def ports(address: str, wanted: int | None, first: int, offset: int) -> tuple[int, list[socket.socket]]:
    """A master port whose companion (plus ``offset``) is free too, and open sockets on both.

    Raises:
        UsageError: the wanted one is taken, or the address is none of this host's.
    """
    for port in [wanted] if wanted is not None else range(first, first + 50):
        opened: list[socket.socket] = []
        try:
            opened.append(_listening(address, port))
            opened.append(_listening(address, port + offset))
        except OSError as error:
            for one in opened:
                one.close()
            if wanted is None and procs.port_is_free(address, 0):
                continue
            taken = port + offset if opened else port
            holder = procs.listener(taken)
            who = f" (pid {holder}: {procs.command_line(holder, 80)})" if holder else ""
            raise UsageError(
                f"cannot listen on {address} port {taken}: {error.strerror or error}{who}",
                hint="take another with `--master-port N`; it needs N and N plus 100 free",
            ) from error
        return port, opened
    raise UsageError(
        f"no free pair of ports from {first} on {address}", hint="give one with `--master-port N`"
    )


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen()
    except (OSError, OverflowError) as error:
        server.close()
        raise OSError(0, f"{getattr(error, 'strerror', None) or error}") from error
    return server


def reach(address: str, port: int, limit_s: float = 5.0) -> str:
    """Why a connection to another node cannot be opened from here; empty when it can."""
    try:
        socket.create_connection((address, port), limit_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
