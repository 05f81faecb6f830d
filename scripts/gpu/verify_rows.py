"""Verify rows of speculation at every accepted length, and requests that are preempted and resumed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

DRAFTS = 3


@contextmanager
def drafts(lab: Any, known: dict[str, list[int]], accept: Callable[[int], int]):
    """Within it every request drafts its own known continuation for ``accept(tokens so far)`` tokens, then wrong ones.

    known: tokens by request, of a run without useful drafts.
    """
    import torch

    states, vocabulary = lab.runner.req_states, lab.model.config.vocab_size
    propose = lab.runner.speculator.propose

    def row(name: str) -> list[int]:
        request = next(
            (tokens for key, tokens in known.items() if name == key or name.startswith(f"{key}-")), None
        )
        if request is None:
            return [1] * DRAFTS
        index = states.req_id_to_index[name]
        done = int(states.total_len.gpu[index]) - int(states.prompt_len.np[index])
        right, taken = request[done : done + DRAFTS], accept(done)
        wrong = [(token + 1) % vocabulary for token in right]
        return (right[:taken] + wrong[taken:] + [1] * DRAFTS)[:DRAFTS]

    def proposed(batch: Any, *args: Any, **named: Any) -> Any:
        found = propose(batch, *args, **named)
        if not named.get("dummy_run"):
            found.copy_(torch.tensor([row(name) for name in batch.req_ids], device=found.device))
        return found

    lab.runner.speculator.propose = proposed
    try:
        yield
    finally:
        lab.runner.speculator.propose = propose


def run(lab: Any, prompts: list[list[int]], count: int, known: list[list[int]] | None, accept: Any) -> Any:
    """(tokens, engine steps) of one batch."""
    names = [lab.add(prompt, count) for prompt in prompts]
    steps: list[int] = []
    with drafts(lab, dict(zip(names, known or [[] for _ in names], strict=True)), accept):
        found = lab.steps(lambda number, _: steps.append(number))
    return [found[name] for name in names], len(steps)


def accepted_lengths(lab: Any, ours: str, count: int = 33) -> dict[str, Any]:
    """Tokens with 0 … K drafts accepted in every step, and with a number that changes from step to step.

    Each is compared with vLLM's own tokens without a useful draft; vLLM's verify rows are compared with them too.
    """
    found: dict[str, Any] = {}
    for batch in (1, 5, 16):
        prompts = lab.prompts(batch, seed=21)
        lab.use("vllm")
        known, _ = run(lab, prompts, count, None, lambda _: 0)
        plans = {str(a): (lambda _, a=a: a) for a in range(DRAFTS + 1)} | {
            "changing": lambda done: done % (DRAFTS + 1)
        }
        for name, accept in plans.items():
            for label in ("vllm", ours):
                lab.use(label)
                tokens, steps = run(lab, prompts, count, known, accept)
                found[f"B{batch} accept {name} {label}"] = {
                    "steps": steps,
                    **lab.differences(prompts, tokens, known),
                }
    return found


def forced_rows(lab: Any, ours: str, count: int = 17) -> dict[str, Any]:
    """Logits of every verify row against vLLM's, with the same drafts and the same tokens."""
    from fp64_checks import relative

    found: dict[str, Any] = {}
    for batch in (1, 5, 16):
        prompts = lab.prompts(batch, seed=22)
        lab.use("vllm")
        known, _ = run(lab, prompts, count, None, lambda _: 0)

        def logits(forced: Any = None, prompts: Any = prompts, known: Any = known) -> list[Any]:
            # the next requests' names are known before they are queued
            first = lab._requests + 1
            names = [f"lab{first + i}" for i in range(len(prompts))]
            with drafts(lab, dict(zip(names, known, strict=True)), lambda done: done % (DRAFTS + 1)):
                return lab.logits(prompts, count, forced=forced)

        theirs = logits()
        lab.use(ours)
        mine, again = logits(theirs), logits(theirs)
        flips = sum(int((a.argmax(-1) != b.argmax(-1)).sum()) for a, b in zip(mine, theirs, strict=True))
        found[f"B{batch}"] = {
            "rows_by_step": [x.shape[0] for x in theirs],
            "errors": [relative(a, b) for a, b in zip(mine, theirs, strict=True)],
            "argmax_flips": flips,
            "rows": sum(x.shape[0] for x in theirs),
            "repeats": all(bool((a == b).all()) for a, b in zip(mine, again, strict=True)),
        }
    return found


def preempted(lab: Any, ours: str) -> dict[str, Any]:
    """Requests that lose their blocks in the middle and start again, because most of the cache is taken away.

    vLLM runs twice so, and both run without losing anything: a difference that stock shows against itself is not ours.
    """
    scheduler = lab.llm.llm_engine.engine_core.engine_core.scheduler
    pool, preempt = scheduler.kv_cache_manager.block_pool, scheduler._preempt_request
    prompts = [lab.prompts(1, 752 + i, seed=70 + i)[0] for i in range(6)]
    seen: list[int] = []

    def counted(*args: Any, **named: Any) -> Any:
        seen.append(1)
        return preempt(*args, **named)

    def once(tight: bool = True) -> list[list[int]]:
        names = [lab.add(prompt, 48) for prompt in prompts]
        held: list[Any] = []

        def squeeze(number: int, _: float) -> None:
            if number == 6 and tight:
                held.extend(pool.get_new_blocks(pool.get_num_free_blocks() - 1))
            elif number == 34 and held:
                pool.free_blocks(reversed(held))
                held.clear()

        found = lab.steps(squeeze)
        if held:
            pool.free_blocks(reversed(held))
        return [found[name] for name in names]

    scheduler._preempt_request = counted
    counts: dict[str, int] = {}
    try:
        tokens: dict[str, list[list[int]]] = {}
        for name, label, tight in (
            ("vllm", "vllm", True),
            ("vllm again", "vllm", True),
            ("vllm, not preempted", "vllm", False),
            ("ours", ours, True),
            ("ours, not preempted", ours, False),
        ):
            lab.use(label)
            seen.clear()
            tokens[name] = once(tight)
            counts[name] = len(seen)
    finally:
        scheduler._preempt_request = preempt
    pairs = (
        ("ours", "vllm"),
        ("vllm again", "vllm"),
        ("vllm", "vllm, not preempted"),
        ("ours", "ours, not preempted"),
    )
    compared = {f"{a} / {b}": lab.differences(prompts, tokens[a], tokens[b]) for a, b in pairs}
    return {"preemptions": counts, **compared}
