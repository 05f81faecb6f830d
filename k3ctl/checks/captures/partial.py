"""What one capture tells about one host, and how several captures of a host are laid over each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from k3ctl.gpus.types import Gpu, Node, NvmlSystem, Pair
from k3ctl.host.types import Host, Imex, Nic, Service
from k3ctl.host.values import NOT_CAPTURED, Maybe

T = TypeVar("T")


@dataclass(frozen=True)
class Partial:
    """One capture. GPUs are known by index; ``host`` holds only what was captured."""

    hostname: str = ""
    nvml: NvmlSystem = NvmlSystem()  # noqa: RUF009 (frozen)
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[Pair, ...] = ()
    services: Mapping[str, Service] = field(default_factory=dict)
    imex: Maybe[Imex] = NOT_CAPTURED
    env: Maybe[Mapping[str, str]] = NOT_CAPTURED
    nics: tuple[Nic, ...] = ()
    host: Host = Host(hostname="")  # noqa: RUF009 (frozen)
    notes: tuple[str, ...] = ()


def about_host(**facts: Any) -> Partial:
    """A capture that tells only these facts of ``Host``."""
    return Partial(host=Host(hostname="", **facts))


def overlay(base: T, top: T) -> T:
    """``base`` with every value that ``top`` really holds: nested dataclasses field by field."""
    defaults = type(top)
    values: dict[str, Any] = {}
    for item in dataclasses.fields(defaults):  # type: ignore[arg-type]
        below, above = getattr(base, item.name), getattr(top, item.name)
        if dataclasses.is_dataclass(above) and type(above) is type(below) and above is not NOT_CAPTURED:
            values[item.name] = overlay(below, above)
        elif isinstance(above, Mapping) and isinstance(below, Mapping):
            values[item.name] = {**below, **above}
        else:
            values[item.name] = below if _is_default(item, above) else above
    return defaults(**values)


def _is_default(item: dataclasses.Field[Any], value: Any) -> bool:
    if item.default_factory is not dataclasses.MISSING:
        return bool(value == item.default_factory())
    return item.default is not dataclasses.MISSING and bool(value == item.default)


def assemble(name: str, parts: Iterable[Partial]) -> tuple[Node, Host]:
    """One host out of its captures, named by what they say or else ``name``."""
    gpus: dict[int, Gpu] = {}
    pairs: dict[tuple[int, int], Pair] = {}
    whole = Partial()
    for part in parts:
        for gpu in part.gpus:
            gpus[gpu.index] = overlay(gpus[gpu.index], gpu) if gpu.index in gpus else gpu
        for pair in part.pairs:
            key = (pair.a, pair.b)
            pairs[key] = overlay(pairs[key], pair) if key in pairs else pair
        whole = overlay(whole, replace(part, gpus=(), pairs=(), notes=()))
    hostname = whole.hostname or name
    node = Node(
        hostname=hostname,
        virt="unknown",
        nvml=whole.nvml,
        services=whole.services,
        imex=whole.imex,
        env=whole.env,
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        pairs=tuple(pairs[key] for key in sorted(pairs)) or NOT_CAPTURED,
        nics=whole.nics,
    )
    return node, replace(whole.host, hostname=hostname)
