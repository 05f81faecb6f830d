"""How a command is run on another host: OpenSSH with the operator's own configuration and agent, never a password."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from k3ctl.errors import UsageError

FAILED = 255
"""Exit status of ssh itself; every other one is the remote command's."""
ALIVE_S, ALIVE_COUNT = 2, 3
"""A connection over which nothing has come for this long, so often, is given up by ssh."""

_HINTS = {
    "identification has changed": "its key is not the one in known_hosts: find out why before you remove the old one "
    "with `ssh-keygen -R HOST`",
    "verification failed": "its key is not in known_hosts: log in once with `ssh HOST` and compare the fingerprint",
    "permission denied": "`ssh HOST true` must work without a question: load your key with `ssh-add`",
    "resolve hostname": "check the name, or give it a `HostName` in ~/.ssh/config",
    "refused": "no sshd listens there: check the name and the port in ~/.ssh/config",
    "timed out": "the host is down, or a firewall drops the packets: try `ssh HOST true`",
    "no route": "the host is down or in another network: try `ssh HOST true`",
    "unreachable": "the host is down or in another network: try `ssh HOST true`",
}


def names(text: str) -> list[str]:
    """The hosts of ``--nodes A,B,…``.

    Raises:
        UsageError: none, one named twice, or one that ssh would take for an option.
    """
    hosts = [name.strip() for name in text.split(",")]
    for host in hosts:
        if not host or host.startswith("-") or host.split() != [host] or not host.isprintable():
            raise UsageError(f"`{host}` is no host name", hint="for example `--nodes tray0,tray1`")
        if hosts.count(host) > 1:
            raise UsageError(f"`{host}` is named {hosts.count(host)} times", hint="name each node once")
    return hosts


def argv(host: str, command: Sequence[str], connect_s: float, *, watched: bool = False) -> list[str]:
    """The command line of ssh. ``watched``: ssh itself notices a dead connection, within seconds."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(connect_s))}"]
    if watched:
        options += ["-T", "-o", f"ServerAliveInterval={ALIVE_S}", "-o", f"ServerAliveCountMax={ALIVE_COUNT}"]
    # ssh hands one line to the remote shell
    return ["ssh", *options, "--", host, shlex.join(command)]


def hint(said: str, host: str) -> str | None:
    """What to do about a failure of ssh, from everything that it said; None for one that is not known."""
    text = said.lower()
    return next((words.replace("HOST", host) for sign, words in _HINTS.items() if sign in text), None)


def document(stdout: str) -> str:
    """The JSON object that a command printed, without what the login shell said before it."""
    lines = stdout.split("\n")
    start = next((number for number, line in enumerate(lines) if line.startswith("{")), 0)
    return "\n".join(lines[start:])


def last_line(said: str) -> str:
    """The line of ssh's messages that says what failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
