"""The preset file's schema (``k3ctl.preset/1``): unknown keys are refused, units are in the names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, lt=0.5)]
Positive = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """Frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LoadSection(Strict):
    """How much, how long. Lengths in tokens, ``duration_s`` per concurrency, warm-up as a share of it."""

    prompt_tokens: Positive
    output_tokens: Positive
    concurrency: Annotated[list[Positive], Field(min_length=1)]
    duration_s: Annotated[int | float, Field(gt=0)] | None = None
    requests: Positive | None = None
    warmup: Share = 0.0
    cooldown: Share = 0.0
    seed: int = 42
    max_errors: Positive | None = None
    sample_size: Annotated[int, Field(ge=0)] | None = None
    prefix_tokens: Positive | None = None
    prefix_count: Positive | None = None

    @model_validator(mode="after")
    def _bounded(self) -> LoadSection:
        if self.duration_s is None and self.requests is None:
            raise ValueError("a load needs `duration_s` or `requests`, else it never ends")
        return self


class RequestSection(Strict):
    """What goes into each request besides the prompt."""

    format: Literal["/v1/chat/completions", "/v1/completions"] = "/v1/chat/completions"
    timeout_s: int | float | None = None
    body: dict[str, Any] = {}


class SessionsSection(Strict):
    """Shape of generated agent sessions."""

    count: Positive
    turns: Positive
    system_tokens: Positive
    user_tokens: Positive
    tool_result_tokens: Positive
    output_tokens: Positive
    pause_s: Annotated[float, Field(ge=0)]
    subagent_turns: Annotated[int, Field(ge=0)] = 0


class ExpectsSection(Strict):
    """Server conditions of the published number."""

    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    acceptance: Literal["none", "real", "synthetic"] | None = None
    synthetic_acceptance_length: float | None = None
    prefix_caching: bool | None = None


class PresetFile(Strict):
    """One preset."""

    schema_: Literal["k3ctl.preset/1"] = Field(alias="schema")
    name: str
    summary: str
    source: str | None = None
    driver: Literal["guidellm", "agentic"] = "guidellm"
    load: LoadSection
    request: RequestSection = RequestSection()
    sessions: SessionsSection | None = None
    expects: ExpectsSection = ExpectsSection()
    anchors: list[str] = []
    waive: dict[str, str] = {}
    client_env: dict[str, str] = {}

    @model_validator(mode="after")
    def _sessions_match_driver(self) -> PresetFile:
        if (self.driver == "agentic") != (self.sessions is not None):
            raise ValueError("`sessions` and `driver: agentic` go together")
        return self


def known_keys() -> set[str]:
    """Every key of the schema, for "did you mean"."""
    sections = (PresetFile, LoadSection, RequestSection, SessionsSection, ExpectsSection)
    return {field.alias or name for section in sections for name, field in section.model_fields.items()}
