"""Sixteen concurrent requests, prefix hits and speculation on: every token is the reference's."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import torch

from runtime.model.config import TINY
from runtime.model.model import K3Model
from runtime.model.weights import load_module, seeded_weights
from tests.e2e.conftest import Server, post


def counter(server: Server, name: str) -> float:
    page = httpx.get(f"{server.url}/metrics", trust_env=False).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + "{"))


def test_sixteen_concurrent_requests_give_exactly_the_references_tokens(server: Server) -> None:
    torch.set_num_threads(1)
    model = K3Model(TINY)
    load_module(model, seeded_weights(TINY))
    rng = random.Random(11)
    shared = [rng.randrange(6, 1000) for _ in range(300)]
    lengths = [1, 2, 5, 17, 31, 64, 100, 127, 128, 129, 200, 260]
    prompts = [[rng.randrange(6, 1000) for _ in range(n)] for n in lengths]
    prompts += [shared + [rng.randrange(6, 1000) for _ in range(n)] for n in (1, 9, 40, 90)]
    before = {
        name: counter(server, name)
        for name in ("vllm:prefix_cache_hits_total", "vllm:spec_decode_num_accepted_tokens_total")
    }

    def ask(i: int) -> list[int]:
        body = {
            "model": "k3-tiny",
            "prompt": prompts[i],
            "max_tokens": 10 + 3 * i,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return list(post(f"{server.url}/v1/completions", body)["choices"][0]["token_ids"])

    ask(12)  # brings the shared prefix into the cache
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    for i, (prompt, tokens) in enumerate(zip(prompts, answers, strict=True)):
        assert len(tokens) == 10 + 3 * i
        logits, _ = model(torch.tensor(prompt + tokens))
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens, f"request {i}"
    assert all(counter(server, name) > value for name, value in before.items())
