"""The reference model: cuts do not matter, shards add up, state is explicit."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from runtime.model.config import TINY
from runtime.model.model import Decoder, K3Model, SequenceState, _SequenceMixer
from runtime.model.sharding import Shard
from runtime.model.weights import load_module, seeded_weights

LOGIT_TOLERANCE = 2e-4  # float32 through 8 layers, other summation order

PROMPT = torch.randint(6, 1000, (131,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def whole(tiny: K3Model) -> Tensor:
    logits, _ = tiny(PROMPT)
    return logits


@pytest.mark.parametrize("cuts", [[1], [63, 64, 65], [1, 2, 3, 100], [16, 32, 48], [130]], ids=str)
def test_a_prompt_cut_anywhere_gives_the_same_logits(tiny: K3Model, whole: Tensor, cuts: list[int]) -> None:
    pieces, state = [], None
    for piece in torch.tensor_split(PROMPT, cuts):
        logits, state = tiny(piece, state)
        pieces.append(logits)
    assert state is not None
    assert state.length == len(PROMPT)
    torch.testing.assert_close(torch.cat(pieces), whole, atol=LOGIT_TOLERANCE, rtol=0)


def test_token_by_token_equals_the_whole_prompt(tiny: K3Model, whole: Tensor) -> None:
    rows, state = [], None
    for token in PROMPT[:40]:
        logits, state = tiny(token[None], state)
        rows.append(logits)
    torch.testing.assert_close(torch.cat(rows), whole[:40], atol=LOGIT_TOLERANCE, rtol=0)


def test_a_call_leaves_the_state_it_was_given_untouched(tiny: K3Model) -> None:
    _, state = tiny(PROMPT[:20])
    before = {i: s.recurrent.clone() for i, s in state.kda.items()}
    first, _ = tiny(PROMPT[20:25], state)
    again, _ = tiny(PROMPT[20:25], state)
    assert torch.equal(first, again)
    assert state.length == 20
    assert all(torch.equal(state.kda[i].recurrent, before[i]) for i in before)


class _Meeting:
    """An all-reduce between two threads."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.parts: dict[int, Tensor] = {}

    def reduce(self, rank: int):
        def all_reduce(x: Tensor) -> Tensor:
            self.parts[rank] = x
            self.barrier.wait(timeout=60)
            total = self.parts[0] + self.parts[1]
            self.barrier.wait(timeout=60)
            return total

        return all_reduce


def test_two_shards_add_up_to_the_whole_model(tiny: K3Model, whole: Tensor) -> None:
    meeting, out, errors = _Meeting(), {}, []

    def rank(r: int) -> None:
        try:
            decoder = torch.nn.Module()
            decoder.model = Decoder(TINY, Shard(2, r, meeting.reduce(r)))
            load_module(decoder, seeded_weights(TINY))
            x = tiny.model.embed_tokens.weight[PROMPT]
            out[r] = decoder.model(x, _SequenceMixer(SequenceState(), len(PROMPT)))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=rank, args=(r,)) for r in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert torch.equal(out[0], out[1])
    logits = tiny.lm_head(tiny.model.normalize(out[0]))
    torch.testing.assert_close(logits, whole, atol=LOGIT_TOLERANCE, rtol=0)


def test_a_group_that_does_not_divide_the_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="not divisible by tensor_parallel_size = 3"):
        Decoder(TINY, Shard(3))


def test_greedy_decoding_is_repeatable(tiny: K3Model) -> None:
    prompt = [100, 200, 300]
    assert tiny.greedy(prompt, 12) == tiny.greedy(prompt, 12)
