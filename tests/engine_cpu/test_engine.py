"""The real engine against the full-sequence reference: every token, every path, every state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.model.config import TINY
from runtime.model.model import K3Model
from runtime.model.weights import load_module, seeded_weights
from tests.engine_cpu.conftest import prompts

LOGPROB_TOLERANCE = 2e-4
SPECIALIZED = {"decode_backend": "latency_specialized"}
MTP = {"method": "mtp", "num_speculative_tokens": 3}
# twelve lengths around chunk and block limits, and two repetitive prompts for n-gram drafts
PROMPTS = [
    *prompts([1, 3, 7, 17, 40, 63, 64, 65, 130, 200, 333, 5]),
    prompts([4])[0] * 6,
    prompts([9])[0] * 6,
]
MAX_TOKENS = [12 + 5 * (i % 7) for i in range(len(PROMPTS))]
COMMON = {"max_model_len": 512, "max_num_batched_tokens": 64}


@pytest.fixture(scope="module")
def reference() -> K3Model:
    torch.set_num_threads(1)
    model = K3Model(TINY)
    load_module(model, seeded_weights(TINY))
    return model


def assert_equals_reference(model: K3Model, outputs: list[dict[str, Any]]) -> None:
    """Teacher-forced: each generated token must be the reference's argmax after everything before it."""
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    for out in outputs:
        sequence = tuple(out["prompt"] + out["tokens"])
        if sequence not in seen:
            seen[sequence] = model(torch.tensor(sequence))[0].log_softmax(-1)
        first = len(out["prompt"]) - 1
        rows = seen[sequence][first : first + len(out["tokens"])]
        assert rows.argmax(-1).tolist() == out["tokens"]
        got = torch.tensor(out["logprobs"])
        expected = rows.gather(1, torch.tensor(out["tokens"])[:, None])[:, 0]
        torch.testing.assert_close(got, expected, atol=LOGPROB_TOLERANCE, rtol=0)


def paths(result: dict[str, Any], rank: int = 0) -> Counter[tuple[str, str]]:
    page = next(p for p in result["witness"] if p["rank"] == rank)
    counts: Counter[tuple[str, str]] = Counter()
    for entry in page["steps"]:
        counts[entry["path"], entry["reason"]] += entry["steps"]
    return counts


CASES = {
    "standard path": ({"enable_prefix_caching": False}, 1),
    "specialized, prefix cache": ({"enable_prefix_caching": True, "additional_config": SPECIALIZED}, 2),
    "specialized, prefix cache, mtp": (
        {"enable_prefix_caching": True, "additional_config": SPECIALIZED, "speculative_config": MTP},
        2,
    ),
    "n-gram drafts": (
        {
            "enable_prefix_caching": True,
            "additional_config": SPECIALIZED,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
        },
        1,
    ),
    "small cache, mtp": (
        {
            "enable_prefix_caching": True,
            "additional_config": SPECIALIZED,
            "speculative_config": MTP,
            "kv_cache_memory_bytes": 20 << 20,
        },
        1,
    ),
    "tensor parallel, mtp": (
        {
            "enable_prefix_caching": True,
            "additional_config": SPECIALIZED,
            "speculative_config": MTP,
            "tensor_parallel_size": 2,
        },
        1,
    ),
}


QUICK = {"specialized, prefix cache, mtp", "tensor parallel, mtp"}


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_every_token_equals_the_reference(
    name: str, run_case: Callable[..., dict[str, Any]], reference: K3Model
) -> None:
    engine, repeat = CASES[name]
    result = run_case({**COMMON, **engine}, prompts=PROMPTS, max_tokens=MAX_TOKENS, repeat=repeat)
    assert_equals_reference(reference, result["outputs"])
    metrics, counted = result["metrics"], paths(result)
    if repeat > 1:
        assert metrics["vllm:prefix_cache_hits"] > 0
    if "speculative_config" in engine:
        drafts, accepted = (
            metrics["vllm:spec_decode_num_draft_tokens"],
            metrics["vllm:spec_decode_num_accepted_tokens"],
        )
        assert 0 < accepted < drafts
    if engine.get("additional_config"):
        assert counted["specialized", ""] > 0
        assert {reason for path, reason in counted if path == "standard"} <= {
            "prefill-in-batch",
            "query-length-not-uniform",
            "query-length-not-planned",
        }
    else:
        assert set(counted) == {("standard", "backend-off")}
    if engine.get("tensor_parallel_size"):
        assert paths(result, 1) == counted


@pytest.mark.slow
def test_a_request_that_ends_at_the_length_limit_equals_the_reference(
    run_case: Callable[..., dict[str, Any]], reference: K3Model
) -> None:
    """The last steps have room for fewer drafts than K: verify rows of unequal length."""
    engine = {"max_model_len": 64, "speculative_config": MTP, "additional_config": SPECIALIZED}
    result = run_case(engine, prompts=prompts([40, 50, 20], seed=4), max_tokens=[24, 14, 44])
    assert [len(o["tokens"]) for o in result["outputs"]] == [24, 14, 44]
    assert_equals_reference(reference, result["outputs"])


@pytest.mark.parametrize(
    "speculation", [pytest.param(None, marks=pytest.mark.slow), MTP], ids=["plain", "mtp"]
)
def test_sampling_follows_the_models_distribution(
    speculation: dict[str, Any] | None, run_case: Callable[..., dict[str, Any]], reference: K3Model
) -> None:
    """Temperature sampling, with and without drafts: vLLM's CPU expand fault would show here."""
    prompt, count, temperature = [100, 200, 300, 400, 500], 1500, 0.7
    engine: dict[str, Any] = {"max_model_len": 128, "additional_config": SPECIALIZED}
    if speculation:
        engine["speculative_config"] = speculation
    result = run_case(engine, prompts=[prompt] * count, max_tokens=[2] * count, temperature=temperature)
    drawn = [out["tokens"] for out in result["outputs"]]
    first = (reference(torch.tensor(prompt))[0][-1] / temperature).softmax(-1)
    _assert_frequencies([tokens[0] for tokens in drawn], first)
    likely = int(first.argmax())
    after = [tokens[1] for tokens in drawn if tokens[0] == likely]
    second = (reference(torch.tensor([*prompt, likely]))[0][-1] / temperature).softmax(-1)
    _assert_frequencies(after, second)


def _assert_frequencies(drawn: list[int], expected: torch.Tensor) -> None:
    """The four most likely tokens within four standard errors."""
    counts = Counter(drawn)
    for p, token in zip(*expected.topk(4), strict=True):
        error = float((p * (1 - p) / len(drawn)) ** 0.5)
        assert abs(counts[int(token)] / len(drawn) - float(p)) < 4 * error + 1e-3


def test_an_unknown_decode_backend_is_refused_by_name(run_case: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(
        AssertionError, match="decode_backend must be one of auto, latency_specialized; got 'fast'"
    ):
        run_case({**COMMON, "additional_config": {"decode_backend": "fast"}}, prompts=[[1]], max_tokens=[1])
