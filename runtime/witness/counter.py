"""Counts which path every step took, and publishes the counts. Standard library only; one witness per worker process.

Recording costs a dictionary lookup and three additions on the engine's thread. Publishing (a JSON page, replaced
atomically, ``K3_WITNESS_DIR/rank<R>.json``) happens on a thread of its own and never raises into the engine.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

SCHEMA = "k3.witness/1"
TABLE_SCHEMA = "k3.witness.table/1"
DIRECTORY_ENV = "K3_WITNESS_DIR"
FLUSH_PERIOD_S = 0.25


class Key(NamedTuple):
    """What kind of step: its path, what it holds, how it ran, why it is not specialized, which slots are ours."""

    path: str
    kind: str
    mode: str
    reason: str
    slots: str = ""


class Witness:
    """Step counters of one worker.

    ``about``: facts fixed at start (see ``about.who``; besides, decode_backend, max_rows, query_len, refused).
    ``directory``: where the page goes; None keeps the counts in memory only. ``graphs`` answers with the table of
    captured graphs, where there are such.
    """

    graphs: Callable[[], list[dict[str, Any]]] | None = None

    def __init__(self, about: Mapping[str, Any], directory: Path | None = None) -> None:
        self.about = dict(about)
        self.started_at = time.time()
        self._counts: dict[Key, list[int]] = {}
        self._path = directory / f"rank{self.about.get('rank', 0)}.json" if directory else None
        self._published: bytes | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._publishing = threading.Lock()
        self._failed = False
        if self._path is not None:
            threading.Thread(target=self._publish_forever, name="k3-witness", daemon=True).start()
            atexit.register(self.publish)

    def record(self, key: Key, rows: int, tokens: int) -> None:
        """One step: ``rows`` sequences, ``tokens`` query tokens."""
        counts = self._counts.get(key)
        if counts is None:
            counts = self.counter(key)
        counts[0] += 1
        counts[1] += rows
        counts[2] += tokens

    def counter(self, key: Key) -> list[int]:
        """The live [steps, rows, tokens] of ``key``, for a caller that looks its keys up by itself."""
        return self._counts.setdefault(key, [0, 0, 0])

    def page(self) -> dict[str, Any]:
        """The page as data (schema ``k3.witness/1``)."""
        counted = list(self._counts.items())  # one atomic copy: the engine's thread goes on adding
        steps = [
            {**key._asdict(), **dict(zip(("steps", "rows", "tokens"), counts, strict=True))}
            for key, counts in sorted(counted)
        ]
        return {
            "schema": SCHEMA,
            **self.about,
            "pid": os.getpid(),
            "started_at": self.started_at,
            "updated_at": time.time(),
            "steps": steps,
            **({"graphs": self.graphs()} if self.graphs is not None else {}),
        }

    def publish(self) -> None:
        """Replace the page on disk if anything changed, the file included: a damaged page is mended.

        A failing disk is reported once and never raised.
        """
        if self._path is None:
            return
        with self._publishing:  # the thread's turn and the exit's use the same scratch file
            self._publish(self._path)

    def _publish(self, path: Path) -> None:
        page = self.page()
        content = json.dumps({k: v for k, v in page.items() if k != "updated_at"}).encode()
        if content == self._published and _stamp(path) == self._stamp:
            return
        try:
            if self._published is None:  # a directory that is removed later is not made again
                path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_suffix(f".{os.getpid()}.tmp")
            scratch.touch(mode=0o600)
            scratch.write_text(json.dumps(page))
            scratch.replace(path)
            self._published, self._stamp = content, _stamp(path)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("k3 witness page %s cannot be written: %s", path, error)
            self._failed = True

    def _publish_forever(self) -> None:
        while True:
            self.publish()
            time.sleep(FLUSH_PERIOD_S)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Tells whether a file is still the one that was written; None when it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def directory_from_env() -> Path | None:
    """Where pages go, or None when nobody asked for them."""
    value = os.environ.get(DIRECTORY_ENV)
    return Path(value) if value else None


def read_pages(directory: Path) -> list[dict[str, Any]]:
    """All readable pages of a directory; a torn, damaged or foreign file is skipped."""
    pages = []
    for path in sorted(directory.glob("rank*.json")):
        try:
            page = json.loads(path.read_text())
            if page["schema"] == SCHEMA and list(prometheus_samples([page])):
                pages.append(page)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
    return pages


def prometheus_samples(pages: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, dict[str, str], float]]:
    """(metric, labels, value) of pages: counters ``k3_steps|rows|tokens`` and the ``k3_witness_info`` gauge."""
    for page in pages:
        rank = str(page.get("rank", 0))
        for entry in page.get("steps", ()):
            labels = {"rank": rank, **{k: str(entry[k]) for k in ("path", "kind", "mode", "reason")}}
            labels["slots"] = str(entry.get("slots", ""))
            for name in ("steps", "rows", "tokens"):
                yield f"k3_{name}", labels, float(entry[name])
        info = {
            k: str(page.get(k, "")) for k in ("vllm", "runtime", "known_build", "platform", "decode_backend")
        }
        yield "k3_witness_info", {"rank": rank, **info}, 1.0


_current: Witness | None = None


def install(about: Mapping[str, Any]) -> Witness:
    """Create this process's witness (replacing one from an earlier model load in the same process)."""
    global _current  # noqa: PLW0603  # one engine worker per process
    _current = Witness(about, directory_from_env())
    return _current


def current() -> Witness | None:
    """This process's witness, if a model was loaded here."""
    return _current
