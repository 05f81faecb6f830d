"""What the nodes of a group must have in common, and what they must not. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from k3ctl.errors import MachineError, UsageError

About = Mapping[str, Any]
"""``about.tell``'s answer."""
MOST_KEYS = 6


def check(nodes: Mapping[str, About], *, any_version: bool = False) -> None:
    """Refuse nodes that would not be one deployment.

    Raises:
        UsageError: two names of one node; another profile, or another value, on some node.
        MachineError: another version on some node.
    """
    _distinct(nodes)
    if not any_version:
        for package in ("k3ctl", "vllm", "torch", "python"):
            _alike_versions(package, {host: str(about["versions"][package]) for host, about in nodes.items()})
    _alike_profiles(nodes)
    _alike_values(nodes)


def master_address(nodes: Mapping[str, About], wanted: str | None) -> str:
    """The address of node 0 that all of them dial: ``wanted``, or the one at which its ssh came in.

    Raises:
        UsageError: there is none, or it is loopback and the others are elsewhere.
    """
    first, *others = nodes
    found = wanted or str(nodes[first]["address"])
    if not found:
        raise UsageError(f"{first}: its address is not known", hint="give it with `--master-addr ADDRESS`")
    if is_loopback(found) and not all(is_loopback(str(nodes[host]["address"])) for host in others):
        raise UsageError(
            f"{first}: {found} is loopback, so {', '.join(others)} cannot reach it",
            hint=f"name {first} by an address that the others know, or give `--master-addr ADDRESS`",
        )
    return found


def is_loopback(address: str) -> bool:
    """Whether an address, or the name ``localhost``, leads back to where it is used."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _distinct(nodes: Mapping[str, About]) -> None:
    by_place: dict[str, str] = {}
    for host, about in nodes.items():
        other = by_place.setdefault(str(about["place"]), host)
        if other != host:
            raise UsageError(
                f"`{other}` and `{host}` are one and the same node ({about['hostname']})",
                hint="name each node once",
            )


def _alike_versions(package: str, found: Mapping[str, str]) -> None:
    if len(set(found.values())) == 1:
        return
    odd = _odd(found)
    usual = next((version for host, version in found.items() if host not in odd), "")
    listed = ", ".join(f"{host} has {package} {found[host]}" for host in odd)
    others = f", the others {usual}" if usual else ""
    raise MachineError(
        f"the nodes have different versions: {listed}{others}",
        hint=f"install one version of {package} on all of them; --skip-checks starts anyway",
    )


def _alike_profiles(nodes: Mapping[str, About]) -> None:
    found = {host: str(about["profile"]) for host, about in nodes.items()}
    if len(set(found.values())) == 1:
        return
    listed = ", ".join(f"{host} {found[host][:12]}" for host in found)
    raise UsageError(
        f"the profile differs on {_named(_odd(found), found)} (sha256 {listed})",
        hint="copy one file to all nodes, or install one version of k3ctl on all of them",
    )


def _alike_values(nodes: Mapping[str, About]) -> None:
    keys = dict.fromkeys(key for about in nodes.values() for key in about["values"])
    for key in keys:
        found = {host: str(about["values"].get(key, "")) for host, about in nodes.items()}
        if len(set(found.values())) > 1:
            different = [
                other for other in keys if len({about["values"].get(other) for about in nodes.values()}) > 1
            ]
            raise UsageError(
                f"the configuration differs on {_named(_odd(found), found)}: "
                + ", ".join(different[:MOST_KEYS]),
                hint="compare K3CTL_SET, and the variables that the login shell exports, on these nodes",
            )


def _odd(found: Mapping[str, str]) -> list[str]:
    """The hosts whose value is not the most frequent one; all of them where none is."""
    values = list(found.values())
    most = max(values.count(value) for value in values)
    usual = [value for value in dict.fromkeys(values) if values.count(value) == most]
    if len(usual) > 1:
        return list(found)
    return [host for host, value in found.items() if value != usual[0]]


def _named(odd: Sequence[str], everyone: Mapping[str, str]) -> str:
    return ", ".join(odd) if len(odd) < len(everyone) else " and ".join([", ".join(odd[:-1]), odd[-1]])
