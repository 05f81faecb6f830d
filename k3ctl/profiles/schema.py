"""What a serving profile may say. Profiles are data: frozen, and unknown keys are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from k3ctl import redact
from k3ctl.errors import UsageError
from k3ctl.profiles import arguments

When = Annotated[str, BeforeValidator(str)]
"""A date; YAML reads ``2026-09-13`` as one and ``2026-09`` as text."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evidence(_Section):
    """One reason to believe that a configuration works: who saw what, when, under which conditions."""

    what: str
    by: str
    when: When
    versions: str = ""
    conditions: str = ""
    link: str = ""


class Validation(_Section):
    """What ``k3ctl profiles mark-validated`` found in a bundle; never written by hand."""

    bundle: str
    """Id of the bundle (``k3ctl.validation/1``)."""
    sums: str
    """SHA-256 of the bundle's ``SHA256SUMS``."""
    profile: str
    """Digest of what the profile meant then (``meaning``): another value of any key is another one."""
    gpu: str
    gpus: int
    vllm: str
    runtime: str
    when: When
    checks_passed: int
    not_shown: tuple[str, ...] = ()
    """Checks that could not be run there, each with its reason."""


class Requires(_Section):
    """What the hardware and software must offer."""

    gpu: tuple[str, ...] = ()
    """Accepted product tokens, for example ``GB300``; empty for a profile that needs no GPU."""
    gpus: int = 0
    """GPUs over all nodes."""
    nodes: int = 1
    nvlink_domain: bool = False
    """All GPUs must be in one NVLink domain (same cluster UUID and clique)."""
    multicast: bool = False
    """NVLink multicast must work over all GPUs."""
    driver: str = ""
    """Version specifier of the NVIDIA driver, for example ``>=580``."""
    vllm: str = ">=0.33.0,<0.34"
    """Version specifier of vLLM."""
    memory_gib: float = 0.0
    """Host memory that the engine needs, where that is the limit."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs on each node."""
        return self.gpus // max(self.nodes, 1)


class Model(_Section):
    """Which weights are served, and under which name."""

    id: str | None = None
    """Repository id or local path; None for a generated model."""
    revision: str | None = None
    tokenizer: str | None = None
    drafter: str | None = None
    """Weights of the speculator, where it has its own."""
    generated: Literal["tiny"] | None = None
    """The model is made locally before the start instead of being read from ``id``."""
    served_name: str | None = None
    """Name that clients use; the ``id`` where it is not given."""

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if (self.id is None) == (self.generated is None):
            raise ValueError("give either `id` or `generated`")
        return self


class Serve(_Section):
    """``vllm serve`` arguments by vLLM's own names, and the engine's environment."""

    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("args")
    @classmethod
    def _known_arguments(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in values:
            if name in OWNED:
                raise UsageError(f"`serve.args.{name}` is set through `{OWNED[name]}`")
        return {name: arguments.check_value(name, value) for name, value in values.items()}

    @field_validator("env", mode="before")
    @classmethod
    def _known_variables(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            return values
        arguments.check_environment(values)
        return {name: value if isinstance(value, str) else str(value) for name, value in values.items()}


class Decode(_Section):
    """The decode path: backend, speculator, context parallelism and the batch budget."""

    backend: Literal["auto", "latency_specialized", "hopper"] = "auto"
    """``latency_specialized``: vLLM's own, on Blackwell. ``hopper``: the runtime's, on Hopper."""
    speculator: dict[str, Any] | None = None
    """Fields of vLLM's ``speculative_config``; ``model`` comes from ``model.drafter``."""
    decode_context_parallel_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    @field_validator("speculator")
    @classmethod
    def _known_fields(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        arguments.check_fields(arguments.lookup("speculative_config"), value)
        if value is not None and not {"method", "num_speculative_tokens"} <= set(value):
            raise UsageError("`decode.speculator` needs `method` and `num_speculative_tokens`")
        return value

    @field_validator("max_num_batched_tokens", mode="before")
    @classmethod
    def _human(cls, value: Any) -> Any:
        return value if value is None else arguments.check_value("max_num_batched_tokens", value)


class Anchor(_Section):
    """A published number to compare with, and the conditions it was measured under."""

    id: str
    result: str
    conditions: str
    source: str
    when: When


class Expect(_Section):
    """What to expect after start."""

    anchors: tuple[Anchor, ...] = ()
    kv_sequence_tokens: int | None = None
    """Length for which ``kv_sequences`` is stated."""
    kv_sequences: int | None = None
    """Sequences of ``kv_sequence_tokens`` that the memory plan predicts to fit."""


class Bench(_Section):
    """What ``k3ctl bench`` runs when no preset is named."""

    presets: tuple[str, ...] = ("smoke",)


MARKS = "`k3ctl profiles mark-validated`"


def meaning(data: Mapping[str, Any]) -> str:
    """``Profile.meaning`` of a profile as data, without its secrets: what a run record keeps has none."""
    kept = {
        key: value for key, value in data.items() if key not in {"status", "evidence", "validation", "notes"}
    }
    return hashlib.sha256(json.dumps(_said(redact.PLAIN.value(kept)), sort_keys=True).encode()).hexdigest()


def _said(value: Any) -> Any:
    """Without what is empty: a key that a later k3ctl knows, and this profile does not set, changes nothing."""
    if isinstance(value, Mapping):
        return {key: _said(inner) for key, inner in value.items() if inner not in (None, "", [], {})}
    return value


class Profile(_Section):
    """One deployment of one model on one kind of hardware, for one goal."""

    schema_version: Literal[1] = Field(alias="schema")
    name: str
    summary: str
    extends: str | None = None
    status: Literal["validated", "supported", "untested"]
    """``validated``: a bundle of ``k3ctl validate`` showed it. ``supported``: rests on the named evidence."""
    goal: Literal["latency", "throughput", "long-context", "baseline", "demo"] = "latency"
    evidence: tuple[Evidence, ...] = ()
    validation: Validation | None = None
    notes: tuple[str, ...] = ()
    requires: Requires = Requires()
    model: Model
    serve: Serve = Serve()
    decode: Decode = Decode()
    expect: Expect = Expect()
    bench: Bench = Bench()
    pairs_with: str | None = None
    """The other half of a prefill/decode pair."""

    _inherited: frozenset[str] = PrivateAttr(default=frozenset())
    _file: str = PrivateAttr(default="")
    _texts: tuple[tuple[str, str], ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _reason_for_status(self) -> Profile:
        if self.status == "supported" and not self.evidence:
            raise ValueError("`status: supported` needs `evidence`")
        if (self.status == "validated") != (self.validation is not None):
            raise ValueError(f"`status: validated` and `validation` are written together, by {MARKS}")
        if self.validation is not None and self.validation.profile != self.meaning:
            raise ValueError(
                f"it was changed since it was validated: take `validation` and its `status` out; {MARKS} sets them anew"
            )
        return self

    @property
    def meaning(self) -> str:
        """Digest of every key but those that say how far to trust it."""
        return meaning(self.model_dump(mode="json", by_alias=True))

    def mark_source(
        self, file: str, inherited: frozenset[str], texts: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Remember the file, which dotted keys came from the profile named by ``extends``, and what was read."""
        self._file, self._inherited, self._texts = file, inherited, texts

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """(file name, text) of the profile as it was read, then of the one it extends."""
        return self._texts

    @property
    def file(self) -> str:
        """The file that the profile was read from."""
        return self._file

    def stated_in(self, key: str) -> str:
        """The profile that states the dotted ``key``: this one or the one it extends."""
        return self.extends if self.extends and key in self._inherited else self.name


OWNED = {
    "model": "model.id",
    "model_tag": "model.id",
    "revision": "model.revision",
    "tokenizer": "model.tokenizer",
    "served_model_name": "model.served_name",
    "speculative_config": "decode.speculator",
    "decode_context_parallel_size": "decode.decode_context_parallel_size",
    "max_num_seqs": "decode.max_num_seqs",
    "max_num_batched_tokens": "decode.max_num_batched_tokens",
    "nnodes": "requires.nodes",
    "node_rank": "the launch plan of each node",
    "master_addr": "the launch plan of each node",
    "headless": "the launch plan of each node",
    "config": "the profile itself",
}
"""Arguments that another part of the profile decides, and that part's name."""
