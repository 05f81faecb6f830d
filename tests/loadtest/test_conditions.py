"""Everything that moves speed is a condition: known and equal on both sides, or the rows are not compared."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k3ctl.bundle import write
from k3ctl.engine.rundir import Run
from k3ctl.loadtest import compare, conditions, gate, summary
from k3ctl.loadtest.conditions import CONDITIONS, OF_ROW
from tests.loadtest import results
from tests.loadtest.test_compare import BLOG

CHANGES: list[tuple[str, str, Any, str]] = [
    # condition, place in ask.json, another value, what is named
    ("gpu", "target.deployment.gpu", "GB300", "GPU: B300 here, GB300 there"),
    ("gpus", "target.deployment.gpus", 16, "GPUs: 8 here, 16 there"),
    ("tensor_parallel_size", "target.deployment.tensor_parallel_size", 4, "TP: 8 here, 4 there"),
    ("num_speculative_tokens", "target.deployment.num_speculative_tokens", 7, "K: 8 here, 7 there"),
    ("prefix_caching", "target.deployment.prefix_caching", True, "prefix caching is not known here"),
    ("model", "target.model", "moonshotai/Kimi-K3-mini", "served model: moonshotai/Kimi-K3 here"),
    ("model_digest", "target.launch.model_digest", "other", "model digest"),
    ("arguments", "target.launch.arguments.max_num_seqs", 32, "arguments: `max_num_seqs` 64 here, 32 there"),
    ("arguments", "target.launch.arguments.block_size", 64, "arguments: `block_size` not set here, 64 there"),
    ("arguments", "target.launch.arguments.speculative_config.method", "mtp", "arguments: `speculative_config`"),
    ("environment", "target.launch.environment.NCCL_ALGO", "Ring", "environment: `NCCL_ALGO` not set here"),
    ("versions", "target.launch.versions.vllm", "0.34.0", "versions: `vllm` 0.33.0 here, 0.34.0 there"),
    ("versions", "target.launch.versions.driver", "570.0", "versions: `driver`"),
    ("machine", "target.launch.machine", "EPYC, 96 CPUs", "machine: Xeon, 224 CPUs here"),
    ("preset", "workload.preset", "decode", "preset: 8k1k here, decode there"),
    ("load", "workload.duration_s", 7.0, "load: `duration_s`"),
    ("load", "workload.requests", 7, "load: `requests`"),
    ("prompt_tokens", "workload.prompt_tokens", 4000, "prompt tokens: 8000 here, 4000 there"),
    ("output_tokens", "workload.output_tokens", 10, "output tokens"),
    ("load", "workload.prefix_count", 3, "load: `prefix_count`"),
    ("sampling", "workload.body.temperature", 0.0, "sampling: `temperature` 1.0 here, 0.0 there"),
    ("sampling", "workload.body.top_k", 20, "sampling: `top_k` not set here"),
    ("reasoning_effort", "workload.body.reasoning_effort", "low", "reasoning effort: max here, low there"),
    ("seed", "workload.seed", 7, "seed: 42 here, 7 there"),
    ("warmup", "workload.warmup", 0.0, "warm-up and cool-down"),
    ("warmup", "workload.cooldown", 0.2, "warm-up and cool-down"),
    ("endpoint", "workload.request_format", "/v1/completions", "endpoint: /v1/chat/completions here"),
    ("client", "client", "guidellm 0.9.0", "client: guidellm 0.8.1 here, guidellm 0.9.0 there"),
    ("driver", "workload.driver", "agentic", "driver: guidellm here, agentic there"),
]  # fmt: skip
ELSEWHERE = [
    ("definitions", "of the program"), ("sessions", "of agentic presets"), ("acceptance", "per row"),
    ("acceptance_length", "per row"), ("path", "per row"), ("concurrency", "per row"), ("unit", "per row"),
    ("prefix_reset", "of repeated prompts"),
]  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    return made(tmp_path, "base")


def made(tmp_path: Path, name: str, place: str = "", value: Any = None) -> dict[str, Any]:
    """The summary of a result whose ``ask.json`` was changed in one place."""
    raw = results.make(tmp_path / name, BLOG, concurrency=(1, 4, 16)) / "raw"
    ask = json.loads((raw / "ask.json").read_text())
    if place:
        *path, last = place.split(".")
        inner = ask
        for key in path:
            inner = inner[key]
        inner[last] = value
    (raw / "ask.json").write_text(json.dumps(ask))
    return summary.summarize(raw)


def test_every_condition_has_a_change_that_is_caught() -> None:
    assert {name for name, *_ in CHANGES} | {name for name, _ in ELSEWHERE} == set(CONDITIONS)


@pytest.mark.parametrize(("name", "place", "value", "told"), CHANGES, ids=[place for _, place, *_ in CHANGES])
def test_rows_whose_conditions_differ_are_neither_better_nor_worse(
    tmp_path: Path, base: dict[str, Any], name: str, place: str, value: Any, told: str
) -> None:
    other = made(tmp_path, "other", place, value)
    for row in other["rows"]:
        row["valid"] = True
    for faster in (0.8, 1.0, 1.3):
        for row, ours in zip(other["rows"], base["rows"], strict=True):
            row["output_tok_s"] = ours["output_tok_s"] * faster
        pairs = compare.against_summary(base, other, source="other", unit="output_tok_s")
        assert pairs
        for pair in pairs:
            assert (pair.verdict, pair.ratio) == ("", None)
            assert any(told in reason for reason in pair.reasons), pair.reasons
    verdicts, refused = gate.gate(other, base, threshold=0.03)
    assert refused and not verdicts
    if name not in OF_ROW:
        # rows that another change spoils (an unexpected K, say) stay invalid and are not compared
        varied, left = gate.gate(other, base, threshold=0.03, varied=frozenset({name}))
        assert varied and not left


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from leaves(inner, (*path, key))


def test_any_change_of_what_was_launched_is_caught(base: dict[str, Any]) -> None:
    """Whatever argument, variable or version: changed, added or gone."""
    found = base["conditions"]
    for name in ("arguments", "environment", "versions", "load", "sampling"):
        for path in leaves(found[name]):
            for change in (
                lambda inner, key: inner.update({key: "other"}),
                lambda inner, key: inner.pop(key),
            ):
                other = copy.deepcopy(base)
                inner = other["conditions"][name]
                for key in path[:-1]:
                    inner = inner[key]
                unset = inner[path[-1]] is None
                change(inner, path[-1])
                if unset and path[-1] not in inner:
                    continue  # not set is not set
                verdicts, refused = gate.gate(base, other, threshold=0.03)
                assert refused and not verdicts, (name, path)


@pytest.mark.parametrize("name", sorted(set(CONDITIONS) - OF_ROW))
def test_what_is_not_known_is_not_equal(base: dict[str, Any], name: str) -> None:
    other = copy.deepcopy(base)
    other["conditions"][name] = None
    optional = CONDITIONS[name].optional and base["conditions"][name] is None
    for pair in ((base, other), (other, base)):
        verdicts, refused = gate.gate(*pair, threshold=0.03)
        assert bool(verdicts) == optional and bool(refused) != optional
    verdicts, _ = gate.gate(other, other, threshold=0.03)
    assert bool(verdicts) == CONDITIONS[name].optional


def test_every_bundle_has_its_conditions_sealed(tmp_path: Path) -> None:
    manifest = write.write(results.make(tmp_path / "b"), write.Surroundings(), environment={})
    stored = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert set(manifest["conditions"]) == set(CONDITIONS) - OF_ROW
    assert stored["conditions"] == json.loads((tmp_path / "b" / "summary.json").read_text())["conditions"]
    assert stored["conditions"]["versions"]["vllm"] == "0.33.0"


def test_rows_that_are_gone_are_told(base: dict[str, Any]) -> None:
    less = copy.deepcopy(base)
    less["rows"] = [row for row in less["rows"] if row["concurrency"] != 16]
    assert gate.missing(base, less) == ["c=16: no valid row in the new bundle"]
    assert gate.missing(less, base) == []


def run_of(launch: dict[str, Any], change: Callable[[dict[str, Any]], None] = lambda _: None) -> Run:
    kept = copy.deepcopy(launch)
    change(kept)
    return Run(
        id="r", profile="p", host="h", port=1, url="http://h:1", served_model_name="m", tokenizer="t", argv=(),
        env={}, started_at=0.0, launch=kept,
    )  # fmt: skip


def test_where_a_server_listens_and_writes_is_no_condition(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x" * 9)
    launch = {
        "model": str(model),
        "args": {
            "host": "0.0.0.0",
            "port": 8000,
            "max_num_seqs": 4,
            "profiler_config": {"torch_profiler_dir": "/a"},
        },
        "env": {
            "K3_WITNESS_DIR": "/a/b",
            "TMPDIR": "/tmp/x",
            "VLLM_HOST_IP": "1.2.3.4",
            "OMP_NUM_THREADS": "1",
        },
        "versions": {"vllm": "0.33.0"},
    }
    first = conditions.of_run(run_of(launch))

    def elsewhere(kept: dict[str, Any]) -> None:
        kept["args"] |= {"host": "127.0.0.1", "port": 9, "profiler_config": {"torch_profiler_dir": "/b"}}
        kept["env"] |= {"K3_WITNESS_DIR": "/c", "TMPDIR": "/tmp/y", "VLLM_HOST_IP": "5.6.7.8"}

    assert conditions.of_run(run_of(launch, elsewhere)) == first
    assert first["environment"] == {"OMP_NUM_THREADS": "1"}
    (model / "model.safetensors").write_bytes(b"x" * 10)
    assert conditions.of_run(run_of(launch))["model_digest"] != first["model_digest"]
    empty = conditions.of_run(run_of({}))
    assert [empty[name] for name in ("model_digest", "arguments", "environment", "versions")] == [None] * 4


def test_a_repository_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert conditions.model_digest("org/name") is None
    assert conditions.model_digest("org/name", "abc") == "org/name@abc"
    refs = tmp_path / "hub" / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("5f1c\n")
    assert conditions.model_digest("org/name") == "org/name@5f1c"
