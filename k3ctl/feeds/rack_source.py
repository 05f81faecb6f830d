"""The GPUs of another node of a group, read there and sent through ssh; and the way to the group's server."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from k3ctl.feeds.gpu_source import GpuFeed
from k3ctl.host import ssh
from k3ctl.rack.tunnel import Tunnel
from k3ctl.telemetry import recording
from k3ctl.telemetry.events import Event, FeedFailed, GpusRead

AGAIN_S = 5.0
"""From the end of an ssh to the next try."""
SILENT_S = 10.0
LINE_BYTES = 4 << 20


class NodeGpuFeed:
    """The GPUs of ``host``. Events carry this machine's time, and the name that the operator gave the host."""

    interval_s = 1.0

    def __init__(self, host: str, remote_k3ctl: str = "k3ctl", connect_s: float = 10.0) -> None:
        self._host = host
        self._argv = ssh.argv(host, [remote_k3ctl, "member", "--gpus"], connect_s, watched=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the feed
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._started_at = self._heard_at = 0.0
        self._new = True
        self._ahead_s: float | None = None

    def read(self) -> Sequence[Event]:
        """What has come; a failure when nothing does."""
        now = time.time()
        ended = self._process is None or self._process.poll() is not None
        if ended and (failed := self._start(now)):
            return failed
        events = self._first()
        while True:
            try:
                events.append(self._events.get_nowait())
            except Empty:
                break
        if events:
            self._heard_at, self._new = time.time(), False
        elif now - self._heard_at > SILENT_S:
            return [FeedFailed(now, self._host, "gpus", f"nothing heard for {SILENT_S:.0f} s")]
        return events

    def _first(self) -> list[Event]:
        """Of a connection that is new the first event, for which it waits: `monitor --once` looks only twice."""
        events: list[Event] = []
        assert self._process is not None
        deadline = time.monotonic() + SILENT_S
        while self._new and not events and self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(Empty):
                events.append(self._events.get(timeout=0.1))
        return events

    def close(self) -> None:
        """End the ssh, and with it the reader there."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.terminate()
            self._process.wait()
        self._said.close()

    def _start(self, now: float) -> Sequence[Event]:
        failed: list[Event] = []
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            failed = [FeedFailed(now, self._host, "gpus", self._why(self._process.returncode))]
            if now - self._started_at < AGAIN_S:
                return failed
        self._said.truncate(0)
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )
        self._started_at = self._heard_at = now
        self._new = True
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return failed

    def _why(self, code: int) -> str:
        self._said.seek(0)
        said = self._said.read(8192).decode(errors="replace")
        return ssh.last_line(said) or f"ssh ended with status {code}"

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            while line := stream.readline(LINE_BYTES):
                event = recording.decode(line.decode(errors="replace"))
                if isinstance(event, GpusRead | FeedFailed):
                    self._events.put(self._here(event))

    def _here(self, event: GpusRead | FeedFailed) -> Event:
        """The event in this machine's time: the least that a line took is what the clocks differ by."""
        ahead = time.time() - event.t
        self._ahead_s = ahead if self._ahead_s is None else min(self._ahead_s, ahead)
        return replace(event, t=event.t + self._ahead_s, source=self._host)


class TunnelFeed:
    """Keeps the way to a group's server open; says nothing while it is."""

    interval_s = 2.0

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel

    def read(self) -> Sequence[Event]:
        """A failure when the ssh has ended; it is started again."""
        why = self._tunnel.check()
        return [FeedFailed(time.time(), self._tunnel.host, "tunnel", why)] if why else []

    def close(self) -> None:
        """End it."""
        self._tunnel.close()


def send(
    feed: GpuFeed | None = None,
    reading: int = 0,
    write: Callable[[str], object] = sys.stdout.write,
) -> None:
    """On a node: this machine's GPUs as JSON lines, until the input ends or nobody reads."""
    feed = feed or GpuFeed()
    try:
        while True:
            for event in feed.read():
                write(json.dumps(recording.encode(event)) + "\n")
            sys.stdout.flush()
            if select.select([reading], [], [], feed.interval_s)[0] and not os.read(reading, 4096):
                return
    except BrokenPipeError:
        return
    finally:
        feed.close()
