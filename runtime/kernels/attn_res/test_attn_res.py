"""Attention Residuals against a literal transcription, one token and one source at a time in FP64."""

import pytest
import torch

from runtime.kernels.attn_res import attn_res

T, B, D = 5, 8, 24


def literal(sources, score_norm, score_vec, eps, out_norm, out_eps):
    """One token: softmax over <RMSNorm(source), score_vec>, mix the un-normalised sources, normalise."""
    scores = []
    for source in sources:
        rms = (sum(value**2 for value in source) / len(source) + eps) ** 0.5
        scores.append(sum(s / rms * w * r for s, w, r in zip(source, score_norm, score_vec, strict=True)))
    exponentials = [(score - max(scores)).exp() for score in scores]
    mix = sum(e / sum(exponentials) * source for e, source in zip(exponentials, sources, strict=True))
    if out_norm is None:
        return mix
    return mix / (sum(mix**2) / len(mix) + out_eps) ** 0.5 * out_norm


def make(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    prefix, delta, blocks = torch.randn(T, D), torch.randn(T, D), torch.randn(T, B, D)
    weights = {
        "score_norm": 1 + 0.1 * torch.randn(D),
        "score_vec": torch.randn(D),
        "out_norm": torch.randn(D),
    }
    return (
        prefix.to(dtype),
        delta.to(dtype),
        blocks.to(dtype),
        {name: w.to(dtype) for name, w in weights.items()} | {"eps": 1e-5, "out_eps": 1e-6},
    )


@pytest.mark.parametrize("num_blocks", [0, 1, 8])
@pytest.mark.parametrize("with_delta", [True, False], ids=["delta", "no-delta"])
@pytest.mark.parametrize("normed", [True, False], ids=["normed", "bare"])
def test_the_output_is_the_literal_mixture(num_blocks, with_delta, normed):
    prefix, delta, blocks, options = make()
    if not normed:
        options["out_norm"] = None
    result = attn_res(
        prefix, delta if with_delta else None, blocks, num_blocks=num_blocks, write=None, **options
    )
    updated = prefix + delta if with_delta else prefix
    for t in range(T):
        expected = literal([*blocks[t, :num_blocks], updated[t]], **options)
        torch.testing.assert_close(result.out[t], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(result.prefix, updated)
    assert result.blocks is blocks


@pytest.mark.parametrize("write", [0, 1, 7])
def test_the_written_block_is_the_new_prefix_and_not_yet_a_source(write):
    prefix, delta, blocks, options = make()
    before = blocks.clone()
    result = attn_res(prefix, delta, blocks, num_blocks=write, write=write, **options)
    for t in range(T):
        expected = literal([*before[t, :write], prefix[t] + delta[t]], **options)
        torch.testing.assert_close(result.out[t], expected, rtol=1e-12, atol=1e-12)
    others = [block for block in range(B) if block != write]
    assert torch.equal(result.blocks[:, write], prefix + delta)
    assert torch.equal(result.blocks[:, others], before[:, others])
    assert torch.equal(blocks, before), "the argument must not change"


def test_a_whole_stack_of_layers_equals_the_literal_walk():
    torch.manual_seed(1)
    layers, block_size = 7, 3
    _, _, blocks, options = make()
    blocks = torch.full_like(blocks, torch.nan)
    embedding, outputs = torch.randn(T, D).double(), torch.randn(layers, 2, T, D).double()

    prefix, delta, seen = embedding, None, []
    for layer in range(layers):
        done, write = -(-layer // block_size), layer % block_size == 0
        out, prefix, blocks = attn_res(
            prefix, delta, blocks, num_blocks=done, write=layer // block_size if write else None, **options
        )
        seen.append(out)
        prefix, delta = (outputs[layer, 0], None) if write else (prefix, outputs[layer, 0])
        out, prefix, blocks = attn_res(prefix, delta, blocks, num_blocks=done + write, write=None, **options)
        seen.append(out)
        delta = outputs[layer, 1]

    for t in range(T):
        finished, running, expected = [], embedding[t], []
        for layer in range(layers):
            expected.append(literal([*finished, running], **options))
            if layer % block_size == 0:
                finished.append(running)
                running = torch.zeros(D).double()
            running = running + outputs[layer, 0, t]
            expected.append(literal([*finished, running], **options))
            running = running + outputs[layer, 1, t]
        torch.testing.assert_close(torch.stack([out[t] for out in seen]), torch.stack(expected))


def test_blocks_that_are_not_sources_may_hold_nan():
    prefix, delta, blocks, options = make()
    blocks[:, 3:] = torch.nan
    assert attn_res(prefix, delta, blocks, num_blocks=3, write=None, **options).out.isfinite().all()


def test_bf16_rounds_the_prefix_sum_and_the_result_only():
    prefix, delta, blocks, options = make(torch.bfloat16)
    result = attn_res(prefix, delta, blocks, num_blocks=2, write=2, **options)
    rounded = (prefix.double() + delta.double()).bfloat16()
    assert torch.equal(result.prefix, rounded)
    assert torch.equal(result.blocks[:, 2], rounded)
    wide = {name: value.double() if torch.is_tensor(value) else value for name, value in options.items()}
    exact = attn_res(rounded.double(), None, blocks.double(), num_blocks=2, write=None, **wide).out
    assert result.out.dtype == torch.bfloat16
    torch.testing.assert_close(result.out.double(), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize("num_blocks", [0, 1, 2, 8])
def test_a_row_does_not_depend_on_the_batch(num_blocks):
    prefix, delta, blocks, options = make(torch.float32)
    options |= {"num_blocks": num_blocks, "write": 0}
    together = attn_res(prefix, delta, blocks, **options)
    for t in range(T):
        row = slice(t, t + 1)
        alone = attn_res(prefix[row], delta[row], blocks[row], **options)
        assert all(torch.equal(one, many[row]) for one, many in zip(alone, together, strict=True))


@pytest.mark.parametrize(
    "wrong", [{"num_blocks": 9}, {"num_blocks": -1}, {"write": 8}, {"write": -1}], ids=str
)
def test_block_numbers_that_do_not_fit_are_refused(wrong):
    prefix, delta, blocks, options = make()
    with pytest.raises(ValueError, match="blocks holds 8"):
        attn_res(prefix, delta, blocks, **({"num_blocks": 1, "write": None} | wrong), **options)
