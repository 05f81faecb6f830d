"""What a validation knows of its server before it asks: from the record of its launch, its witness and its lists."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from k3ctl import deployment
from k3ctl.engine import record
from k3ctl.engine.client import HttpError
from k3ctl.engine.rundir import Run
from k3ctl.loadtest import conditions
from k3ctl.profiles import settings
from k3ctl.server import models, witness
from k3ctl.server.client import Client
from k3ctl.server.witness import SPECIALIZED, Graph
from k3ctl.validate import interval

CPU = "cpu"


@dataclass(frozen=True)
class Facts:
    """One server. None: not known. ``random_weights``: the tiny model of the CPU demo; no answer of it is *right*.

    ``max_rows``: token rows that a specialized step may have. ``graph_batches``: batches whose captured graph holds
    other kernels than that of the batch below. ``parallel``: tensor, pipeline and data parallel sizes. ``launch``: what
    its run record says (``conditions``), ``profile``: name and SHA-256 of its profile's text; both empty for a server
    that k3ctl did not start here.
    """

    model: str
    max_model_len: int | None = None
    random_weights: bool = False
    draft_tokens: int | None = None
    acceptance: str | None = None
    query_len: int = 1
    max_rows: int = 0
    graph_batches: tuple[int, ...] = ()
    max_num_seqs: int | None = None
    prefix_caching: bool | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    backend: str = ""
    platform: str = ""
    gpu: str | None = None
    gpus: int | None = None
    parallel: tuple[int, int, int] | None = None
    vllm: str = ""
    runtime: str = ""
    profile: Mapping[str, str] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Plain data, as JSON gives it back."""
        value: dict[str, Any] = json.loads(json.dumps(asdict(self), default=list))
        return value

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """Rebuild from ``json``. Raises TypeError for anything else."""
        sizes = data.get("parallel")
        batches = tuple(data.get("graph_batches") or ())
        return cls(**{**data, "parallel": tuple(sizes) if sizes else None, "graph_batches": batches})

    def most_at_once(self, path: str) -> int | None:
        """Requests of a decode step on ``path``, by design; None where nothing limits them."""
        limits = [self.max_num_seqs] if self.max_num_seqs else []
        if path == SPECIALIZED and self.max_rows:
            limits.append(self.max_rows // max(1, self.query_len))
        return min(limits, default=None)

    @property
    def claimed(self) -> str:
        """The path that the server was started for."""
        return interval.claimed(frozenset({self.backend})) if self.backend or self.platform else ""

    @property
    def key(self) -> str:
        """Names the server's settings: another value of any fact is another key."""
        return hashlib.sha256(json.dumps(self.json(), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def told(self) -> str:
        """One phrase for people."""
        k = "K not known" if self.draft_tokens is None else f"K={self.draft_tokens}"
        tp = (
            f"TP{self.parallel[0]}" + (f" PP{self.parallel[1]}" if self.parallel[1] > 1 else "")
            if self.parallel
            else ""
        )
        return ", ".join(part for part in (self.gpu or self.platform, tp, k, self.backend) if part)


def gather(client: Client, run: Run | None, wanted: str | None = None) -> Facts:
    """Everything that can be known. ``wanted``: the model's name, where the server has several.

    Raises:
        EngineError: nothing answers.
        UsageError: the server serves several models and none was named.
    """
    model = models.served(client, wanted)
    pages = witness.pages(client)
    first = pages[0] if pages else None
    config = record.config(run) if run is not None else None
    known = deployment.of_run(run)
    length = _length(client, model)
    return Facts(
        model=model,
        max_model_len=length,
        random_weights=any(page.platform == CPU for page in pages),
        draft_tokens=_drafts(
            known.num_speculative_tokens, max((page.query_len for page in pages), default=0)
        ),
        acceptance=known.acceptance,
        query_len=max((page.query_len for page in pages), default=1),
        max_rows=min((page.max_rows for page in pages), default=0),
        graph_batches=_changes(first.graphs) if first else (),
        max_num_seqs=_int(config.get("max_num_seqs")) if config else None,
        prefix_caching=known.prefix_caching,
        tool_parser=_name(config.get("tool_call_parser")) if config else None,
        reasoning_parser=_name(config.get("reasoning_parser")) if config else None,
        backend=first.decode_backend if first else "",
        platform=first.platform if first else "",
        gpu=known.gpu,
        gpus=known.gpus,
        parallel=settings.parallel_sizes(config) if config else None,
        vllm=first.vllm if first else known.vllm or "",
        runtime=first.runtime if first else "",
        profile=_profile(run),
        launch=conditions.of_run(run) if run is not None else {},
    )


def _length(client: Client, model: str) -> int | None:
    try:
        return models.max_model_len(client, model)
    except HttpError:
        return None


def _drafts(recorded: int | None, query_len: int) -> int | None:
    """K: from the launch, else from how many tokens the workers verify at a time."""
    return recorded if recorded is not None else query_len - 1 if query_len else None


def _changes(graphs: Sequence[Graph]) -> tuple[int, ...]:
    """Batches at which another choice of kernels begins."""
    pairs = itertools.pairwise(sorted(graphs, key=lambda graph: graph.requests))
    return tuple(dict.fromkeys(after.requests for before, after in pairs if before.choice != after.choice))


def _profile(run: Run | None) -> dict[str, str]:
    kept = (run.launch.get("profile") or {}) if run is not None else {}
    texts = kept.get("texts") or ()
    if not kept.get("name") or not texts:
        return {}
    return {"name": str(kept["name"]), "sha256": digest([str(entry["sha256"]) for entry in texts])}


def digest(parts: list[str]) -> str:
    """One digest over those of a profile and of the one that it extends."""
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _name(value: Any) -> str | None:
    return str(value) if value else None
