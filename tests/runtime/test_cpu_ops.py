"""The stand-ins for vLLM's CPU operators do what the operators do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from runtime.engine.cpu import ops as cpu_ops  # noqa: E402


def t(*values: float, dtype: object = torch.int64):
    return torch.tensor(values, dtype=dtype)


def test_slots_follow_block_table_and_position() -> None:
    table = torch.tensor([[5, 9], [2, 4]], dtype=torch.int32)
    slots = torch.full((6,), 7)
    cpu_ops.compute_slot_mapping_kernel_impl(
        t(0, 2, 5, dtype=torch.int32), t(15, 16, 0, 1, 17), table, slots, 16
    )
    assert slots[:5].tolist() == [5 * 16 + 15, 9 * 16, 2 * 16, 2 * 16 + 1, 4 * 16 + 1]


def test_slots_behind_the_last_token_are_padding() -> None:
    slots = torch.full((4,), 7)
    cpu_ops.compute_slot_mapping_kernel_impl(
        t(0, 1, dtype=torch.int32), t(3), torch.zeros(1, 1, dtype=torch.int32), slots, 16
    )
    assert slots.tolist() == [3, -1, -1, -1]


def test_gumbel_sampling_follows_the_softmax_and_its_seed() -> None:
    logits = torch.tensor([0.1, 1.2, -0.7, 2.0]).repeat(20_000, 1)
    seeds = torch.arange(20_000)
    drawn = cpu_ops.fused_gumbel_argmax(logits, seeds)
    frequency = torch.bincount(drawn, minlength=4) / len(drawn)
    torch.testing.assert_close(frequency, logits[0].softmax(-1), atol=0.015, rtol=0)
    assert torch.equal(drawn[:50], cpu_ops.fused_gumbel_argmax(logits[:50], seeds[:50]))


@pytest.mark.parametrize(
    ("drafts", "target", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], [1, 2, 3, 9]),
        ([1, 5, 3], [1, 2, 3], [1, 2, -1, -1]),
        ([7, 5, 3], [1, 2, 3], [1, -1, -1, -1]),
    ],
    ids=["all accepted and a bonus", "second rejected", "first rejected"],
)
def test_greedy_verification(drafts: list[int], target: list[int], expected: list[int]) -> None:
    out = torch.full((1, 4), -1)
    cpu_ops.rejection_greedy_sample_kernel_impl(
        out, t(3), t(*drafts), t(*target), torch.tensor([[9]]), None, 3
    )
    assert out[0].tolist() == expected


def test_a_request_without_drafts_gets_its_bonus_token() -> None:
    out = torch.full((2, 3), -1)
    cpu_ops.rejection_greedy_sample_kernel_impl(
        out, t(0, 2), t(4, 5), t(4, 6), torch.tensor([[8], [9]]), None, 2
    )
    assert out.tolist() == [[8, -1, -1], [4, 6, -1]]


def test_sampled_verification_keeps_the_target_distribution() -> None:
    """Rejection sampling with a wrong draft distribution must still sample the target's."""
    torch.manual_seed(0)
    target, proposal = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    n = 20_000
    drafts = torch.multinomial(proposal, n, replacement=True)
    cu = torch.arange(1, n + 1)
    target_probs, draft_probs = target.repeat(n, 1), proposal.repeat(n, 1)
    noise = torch.empty(n, 3).exponential_().reciprocal()
    recovered = torch.empty(n, dtype=torch.int64)
    cpu_ops.sample_recovered_tokens_kernel_impl(
        recovered, cu, drafts, draft_probs, target_probs, noise, 3, False
    )
    out = torch.full((n, 2), -1)
    cpu_ops.rejection_random_sample_kernel_impl(
        out, cu, drafts, draft_probs, target_probs, torch.zeros(n, 1, dtype=torch.int64), recovered,
        torch.rand(n), torch.zeros(n, dtype=torch.bool), 1, 3, False,
    )  # fmt: skip
    frequency = torch.bincount(out[:, 0], minlength=3) / n
    torch.testing.assert_close(frequency, target, atol=0.015, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64], ids=str)
def test_expand_fills_the_output_itself_in_its_own_dtype(dtype: object) -> None:
    out = torch.full((5,), -7, dtype=dtype)
    cpu_ops.expand_kernel_impl(out, torch.tensor([0, 3], dtype=dtype), t(2, 5), 0, 1)
    assert out.tolist() == [1, 1, 3, 3, 3]


def test_the_next_token_is_the_last_valid_one_or_the_backup() -> None:
    sampled = torch.tensor([[4, 5, -1], [6, -1, -1], [7, 8, 9]])
    next_token, valid = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    cpu_ops.eagle_prepare_next_token_padded_kernel_impl(
        sampled, torch.tensor([False, True, False]), t(40, 50, 60), next_token, valid, 100, 3, 3
    )
    assert next_token.tolist() == [5, 50, 9]
    assert valid.tolist() == [2, 0, 3]


def test_rejected_drafts_move_the_sampled_row_back() -> None:
    rejected, index = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    cpu_ops.eagle_prepare_inputs_padded_kernel_impl(
        t(3, 3), t(2, 1), t(0, 4, 5, dtype=torch.int32), index, rejected, 2
    )
    assert rejected.tolist() == [2, 0]
    assert index.tolist() == [1, 4]


def test_a_draft_step_at_the_length_limit_goes_to_padding() -> None:
    table = torch.tensor([[3], [6]], dtype=torch.int32)
    lens = t(10, 16, dtype=torch.int32)
    positions, slots = torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    cpu_ops.eagle_step_slot_mapping_metadata_kernel_impl(t(9, 15), table, lens, positions, slots, 16, 16, -1)
    assert positions.tolist() == [10, 0]
    assert slots.tolist() == [3 * 16 + 10, -1, -1]
    assert lens.tolist() == [11, 1]
