from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.errors import EngineError
from k3ctl.loadtest import target
from tests.loadtest import mock_server

SPECULATIVE = (
    '{"method":"dspark","num_speculative_tokens":7,'
    '"rejection_sample_method":"synthetic","synthetic_acceptance_length":6.0}'
)


def test_the_command_line_of_the_server_says_what_is_deployed() -> None:
    argv = [
        "vllm",
        "serve",
        "m",
        "--tensor-parallel-size",
        "16",
        "--no-enable-prefix-caching",
        "--speculative-config",
    ]
    argv += [SPECULATIVE, '--additional-config={"decode_backend":"latency_specialized"}']
    found = target.deployment_from_argv(argv, profile="gb300-tp16")
    assert (found.gpus, found.tensor_parallel_size, found.prefix_caching) == (16, 16, False)
    assert (found.num_speculative_tokens, found.acceptance, found.synthetic_acceptance_length) == (
        7,
        "synthetic",
        6.0,
    )
    assert found.decode_backend == "latency_specialized"


def test_a_plain_command_line_has_no_drafts_and_the_stock_path() -> None:
    found = target.deployment_from_argv(["vllm", "serve", "m"])
    assert (found.num_speculative_tokens, found.acceptance, found.decode_backend) == (0, "none", "auto")
    assert found.prefix_caching is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["NVIDIA GB300"] * 4, "GB300"),
        (["NVIDIA B300 SXM6 AC"] * 8, "B300"),
        (["NVIDIA H200 NVL"] * 2, "H200-NVL"),
        (["NVIDIA H200", "NVIDIA H200 NVL"], None),
        (["NVIDIA H200", "NVIDIA B300"], None),
        (["NVIDIA H200X"] * 8, None),
        ([], None),
    ],
    ids=["gb300", "b300", "h200-nvl", "board-and-cards", "mixed", "unknown", "none"],
)
def test_the_product_is_read_from_the_driver_names(names: list[str], expected: str | None) -> None:
    assert target.gpu_product(names) == expected


def test_a_relative_tokenizer_becomes_absolute_because_the_client_runs_elsewhere(
    mock: mock_server.Server, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tokenizer.parent)
    found = target.from_url(mock.url, model=None, tokenizer=tokenizer.name)
    assert found.tokenizer == str(tokenizer)
    assert target.from_url(mock.url, model=None, tokenizer="org/name").tokenizer == "org/name"
    assert found.model == "k3-tiny"


def test_another_model_than_the_served_one_is_an_engine_error(
    mock: mock_server.Server, tokenizer: Path
) -> None:
    wrong = target.Target(url=mock.url, model="other", tokenizer=str(tokenizer))
    with pytest.raises(EngineError) as caught:
        target.preflight(wrong, target.Client(mock.url))
    assert caught.value.hint == "it serves: k3-tiny"
