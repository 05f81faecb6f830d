"""The lead: connects to every node, has them agree, starts their engines, watches them, stops them.

One thread takes in what the nodes say and decides; one more sends the beats, so that a slow decision costs no lease.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3ctl import __version__, files
from k3ctl.engine import procs
from k3ctl.engine.supervisor import FAILED_GRACE_S
from k3ctl.errors import EngineError, ExitCode, K3Error, MachineError
from k3ctl.host import ssh
from k3ctl.rack import record, story, wire
from k3ctl.rack.channel import Channel, Inbox
from k3ctl.rack.record import Group
from k3ctl.rack.story import Ending

POLL_S = 0.1
PLACE_S = 20.0
LAUNCH_S = 360.0
"""A generated model is made before a run exists."""
END_S = 25.0
"""How long the nodes have for an orderly stop, before their connections are closed."""


class Stopped(Exception):
    """The operator asked for a stop."""


@dataclass
class Node:
    """One node as the lead sees it."""

    rank: int
    host: str
    channel: Channel
    heard_at: float
    state: str = "connecting"
    """``connecting``, ``starting``, ``ready``, then ``detached``, ``refused``, ``stopped``, ``failed`` or ``gone``."""
    stage: str = "connecting"
    reason: str = ""
    run: str = ""
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: K3Error | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return self.state in ("detached", "refused", "stopped", "failed", "gone")

    @property
    def running(self) -> bool:
        """Whether it may have an engine."""
        return self.state in ("starting", "ready")


@dataclass(frozen=True)
class Wanted:
    """What the nodes are asked to serve, and how they are reached."""

    hosts: tuple[str, ...]
    hello: Mapping[str, Any]
    """``profile``, ``set``, ``model``, ``checks``: what each node resolves for itself."""
    remote_k3ctl: str = "k3ctl"
    node_timeout_s: float = 60.0


class Lead:
    """``on_news(node, kind, message)`` hears everything worth telling; ``stops`` grows with every wish to stop."""

    def __init__(
        self,
        wanted: Wanted,
        on_news: Callable[[Node, str, Mapping[str, Any]], None],
        *,
        lease_s: float = wire.LEASE_S,
    ) -> None:
        self.stops = 0
        self.nodes: list[Node] = []
        self._wanted = wanted
        self._on_news = on_news
        self._lease_s = lease_s
        self._inbox: Inbox = queue.Queue()
        self._over = threading.Event()
        self._endings: list[Ending] = []
        self._winding_down = False
        self._deadline = 0.0

    def connect(self) -> dict[str, dict[str, Any]]:
        """Open every connection and let the nodes tell of themselves.

        Raises:
            MachineError, UsageError: a node cannot be reached, or cannot serve this; all of them are named.
        """
        command = [self._wanted.remote_k3ctl, "member"]
        connect_s = min(self._wanted.node_timeout_s / 2, 10)
        now = time.monotonic()
        for rank, host in enumerate(self._wanted.hosts):
            channel = Channel(rank, host, command, self._inbox, connect_s=connect_s)
            self.nodes.append(Node(rank, host, channel, now))
        threading.Thread(target=self._beat, daemon=True).start()
        return self.ask(
            "hello", "about", self._wanted.node_timeout_s, version=__version__, **self._wanted.hello
        )

    def ask(
        self,
        kind: str,
        answer: str,
        limit_s: float,
        *,
        of: Iterable[Node] | None = None,
        each: Callable[[Node], Mapping[str, Any]] = lambda _: {},
        **fields: Any,
    ) -> dict[str, dict[str, Any]]:
        """Send an order and wait for every answer, by host. ``each``: fields of one node's own.

        Raises:
            K3Error: of the nodes that refuse, do not answer in time, or are gone.
            Stopped: the operator asked for it.
        """
        asked = list(self.nodes if of is None else of)
        for node in asked:
            node.channel.send(kind, **fields, **each(node))
        deadline = time.monotonic() + limit_s
        while waiting := [node for node in asked if answer not in node.answers and not node.over]:
            if self.stops:
                raise Stopped
            if time.monotonic() > deadline:
                for node in waiting:
                    self._refuse(node, self._late(node.host, limit_s))
            self.turn()
        if any(node.state in ("stopped", "failed", "gone") for node in self.nodes):
            self.stop(failed=True)
            raise self.failure()
        self._raise_refusals()
        return {node.host: node.answers[answer] for node in asked}

    def _late(self, host: str, limit_s: float) -> MachineError:
        return MachineError(
            f"{host}: no answer within {limit_s:g} s",
            hint=f"try `ssh {host} {self._wanted.remote_k3ctl} doctor`, or a longer --node-timeout",
        )

    def _raise_refusals(self) -> None:
        """One error for all nodes that refused."""
        errors = [node.error for node in self.nodes if node.state == "refused" and node.error is not None]
        if not errors:
            return
        if len(errors) == 1:
            raise errors[0]
        worst = errors[0]
        raise type(worst)(
            f"{len(errors)} of {len(self.nodes)} nodes cannot serve this",
            reasons=[error.message for error in errors],
            hint=worst.hint,
        )

    def launch(self, group: Group, secret: str, order: Mapping[str, Any], api_key: str | None) -> Group:
        """Have every node start its engine; returns when every run has a directory."""
        for node in self.nodes:
            node.state, node.stage = "starting", "starting"

        def own(node: Node) -> dict[str, Any]:
            address = group.members[node.rank].address
            return {"rank": node.rank, "address": address} | ({"api_key": api_key} if node.rank == 0 else {})

        fields = {**order, "master_addr": group.master_addr, "master_port": group.master_port}
        answers = self.ask("launch", "run", LAUNCH_S, each=own, secret=secret, group=group.id, **fields)
        members = tuple(
            record.Member(m.host, m.rank, m.address, str(answers[m.host]["id"]), str(answers[m.host]["log"]))
            for m in group.members
        )
        first = answers[group.hosts[0]]
        return record.update(
            group.dir,
            members=members,
            url=str(first["url"]),
            served_model_name=str(first["served_model_name"]),
        )

    def until(self, state: str) -> None:
        """Wait until every node has this state.

        Raises:
            EngineError: a node has ended instead.
            Stopped: the operator asked for it.
        """
        while any(node.state != state for node in self.nodes):
            if self.stops:
                raise Stopped
            if any(node.over and node.state != state for node in self.nodes):
                self.stop(failed=True)
                raise self.failure()
            self.turn()

    def turn(self) -> None:
        """Take in what the nodes said within a moment, and look for silence."""
        with contextlib.suppress(queue.Empty):
            rank, message = self._inbox.get(timeout=POLL_S)
            while True:
                self._take(self.nodes[rank], message)
                rank, message = self._inbox.get_nowait()
        now = time.monotonic()
        for node in self.nodes:
            if node.running and now - node.heard_at > self._lease_s:
                self._gone(node, f"nothing heard for {self._lease_s:.0f} s")

    def stop(self, *, failed: bool = False) -> None:
        """Stop all nodes: gracefully, at once after a second wish. Returns when they have ended, or do not answer.

        ``failed``: a node is lost, so the others' ranks wait for it in a collective and cannot end by themselves.
        """
        began = time.monotonic()
        if not self._winding_down:
            self._winding_down = True
            self._deadline = began + END_S
            self._send_all("stop")
        wishes = max(self.stops, 1)
        while any(node.running for node in self.nodes) and time.monotonic() < self._deadline:
            impatient = failed and time.monotonic() - began > FAILED_GRACE_S
            if self.stops > wishes or impatient:
                wishes, failed = max(wishes, self.stops), False
                self._send_all("stop")
            self.turn()

    def detach(self) -> None:
        """Let the engines live on without this command. Raises EngineError, Stopped."""
        self._send_all("detach")
        self.until("detached")

    def close(self) -> None:
        """End every connection; a member that is still there stops its engine for that."""
        self._over.set()
        closing = [threading.Thread(target=node.channel.close) for node in self.nodes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def failure(self) -> EngineError:
        """The error for a group that ended when it should not have: which node was first, and its own words."""
        found = story.first(self._endings)
        if found is None:
            return EngineError("the nodes stopped")
        node = self.nodes[found.rank]
        if found.other is not None:
            other = self.nodes[found.other]
            return EngineError(
                f"{node.host} and {other.host} lost each other: {found.reason}",
                hint="look at the network between them; both could be reached from here",
            )
        error = node.error
        others = "; the other nodes were stopped"
        if error is None:
            return EngineError(f"{node.host}: {found.reason}{others}", hint=f"try `ssh {node.host} true`")
        return EngineError(f"{error.message}{others}", hint=error.hint, reasons=error.reasons)

    def _beat(self) -> None:
        while not self._over.wait(wire.BEAT_S):
            self._send_all("beat")

    def _send_all(self, kind: str) -> None:
        for node in self.nodes:
            if not node.over:
                node.channel.send(kind)

    def _take(self, node: Node, message: dict[str, Any]) -> None:
        kind = message["k3"]
        node.heard_at = time.monotonic()
        if kind == "beat":
            return
        if kind == "closed":
            self._closed(node, int(message["code"]), str(message["said"]))
        elif kind == "refused":
            self._refuse(node, wire.error(message.get("error"), node.host))
        elif kind == "ended":
            self._ended(node, message)
        elif kind == "detached":
            node.state = "detached"
        elif kind == "stage":
            node.stage = str(message.get("text"))
        elif kind == "ready":
            node.state = node.stage = "ready"
        else:
            node.answers[kind] = message
            node.run = str(message.get("id") or node.run)
        self._on_news(node, kind, message)

    def _ended(self, node: Node, message: Mapping[str, Any]) -> None:
        node.state = "stopped" if message.get("state") == "stopped" else "failed"
        node.reason = node.stage = str(message.get("reason") or node.state)
        if message.get("error"):
            node.error = wire.error(message["error"], node.host)
        self._endings.append(Ending(node.rank, node.state, node.reason))

    def _closed(self, node: Node, code: int, said: str) -> None:
        if node.over:
            return
        if node.state == "connecting":
            self._refuse(node, refusal(node.host, code, said, self._wanted.remote_k3ctl))
            return
        how = ssh.last_line(said) or f"ssh ended with status {code}"
        self._gone(node, f"its connection is gone ({how})")

    def _refuse(self, node: Node, error: K3Error) -> None:
        node.state, node.error, node.stage = "refused", error, error.message

    def _gone(self, node: Node, reason: str) -> None:
        node.state, node.reason, node.stage = "gone", reason, reason
        self._endings.append(Ending(node.rank, "failed", reason, gone=not self._winding_down))
        self._on_news(node, "gone", {"text": reason})


def refusal(host: str, code: int, said: str, command: str) -> MachineError:
    """The error for a connection that ended before the node said anything."""
    last = ssh.last_line(said)
    if code == ssh.FAILED:
        return MachineError(
            f"{host}: {last or 'ssh failed'}", hint=ssh.hint(said, host) or f"try `ssh {host} true`"
        )
    if code == 127:
        return MachineError(
            f"{host}: there is no `{command}` ({last or 'command not found'})",
            hint="give its path on the nodes with `--remote-k3ctl PATH`",
        )
    if code == ExitCode.USAGE and "No such command" in said:
        return MachineError(
            f"{host}: its k3ctl is too old to be a node of a group",
            hint="install the same version everywhere",
        )
    return MachineError(
        f"{host}: `{command} member` ended with status {code}: {last or 'no message'}",
        hint=f"try `ssh {host} {command} doctor`",
    )


def new_group(
    wanted: Wanted, profile: str, addresses: Mapping[str, str], master: tuple[str, int]
) -> tuple[Group, str]:
    """The record of a group that is about to start, and its secret."""
    secret = secrets.token_hex(32)
    members = tuple(record.Member(host, rank, addresses[host]) for rank, host in enumerate(wanted.hosts))
    me = os.getpid()
    group = Group(
        id=record.new_id(profile),
        profile=profile,
        started_at=time.time(),
        members=members,
        remote_k3ctl=wanted.remote_k3ctl,
        node_timeout_s=wanted.node_timeout_s,
        master_addr=master[0],
        master_port=master[1],
        lead_pid=me,
        lead_started=procs.started_at(me) or 0,
        boot_id=procs.boot_id(),
    )
    return record.create(group, secret), secret


def keep_log(group: Group, host: str, text: str) -> None:
    """Save the end of a node's log beside the record; one that cannot be saved is left out."""
    with contextlib.suppress(OSError):
        files.private_directory(group.dir / "logs")
        files.replace(group.dir / "logs" / f"{host.replace(os.sep, '_')}.log", text.encode())
