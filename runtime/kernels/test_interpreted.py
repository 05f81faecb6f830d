"""The Triton kernels, run by Triton's interpreter on the CPU, equal the references.

FP32 throughout: the interpreter truncates to BF16 where the GPU rounds to nearest. The constants are large and differ
from each other and from K3's, so that each is heard.

The interpreter must be chosen before a kernel's module is imported, so each case runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="no Triton here: `make check-kernels`")

pytestmark = pytest.mark.compilers

ROOT = Path(__file__).parents[2]

ATTN_RES = """
import torch
from runtime.kernels.attn_res import attn_res
from runtime.kernels.attn_res.triton_kernel import run

torch.manual_seed(0)
D = 200  # not a power of two
for num_blocks, write, has_delta, has_norm in [(0, 0, False, True), (1, None, True, True), (3, 3, True, False)]:
    prefix, delta = (torch.randn(3, D) for _ in range(2))
    blocks = torch.randn(3, 5, D)
    blocks[:, num_blocks:] = float("nan")
    weights = {"score_norm": torch.rand(D), "score_vec": torch.randn(D) / 8}
    site = {"num_blocks": num_blocks, "write": write, "eps": 0.3, "out_eps": 0.02, **weights}
    site["out_norm"] = torch.rand(D) if has_norm else None
    expected = attn_res(prefix, delta if has_delta else None, blocks, **site)
    out = torch.full_like(prefix, float("nan"))
    run(prefix, delta if has_delta else None, blocks, out, pdl=False, **site)
    assert torch.equal(prefix, expected.prefix)
    assert torch.equal(blocks.nan_to_num(7.0), expected.blocks.nan_to_num(7.0))
    torch.testing.assert_close(out, expected.out, rtol=1e-5, atol=1e-5)
"""

KDA_DECODE = """
import torch
from runtime.kernels.kda.composed import kda_decode_composed
from runtime.kernels.kda.triton_kernel import run

torch.manual_seed(0)
H, K = 2, 128
for tokens in (1, 3):
    requests, width = 3, H * K
    slots = torch.randperm(requests * tokens)[: requests * tokens].view(requests, tokens).int() + 1
    slots[1] = 0  # padding
    accepted = torch.randint(1, tokens + 1, (requests,)).int() if tokens > 1 else None
    projected = torch.randn(requests * tokens, 4 * width + K + H)
    weights = (
        (torch.randn(width, K) / 11), torch.randn(3 * width, 4) * 0.4, torch.randn(H) * 0.3,
        torch.randn(H, K) * 0.3, torch.rand(K) + 0.5,
    )
    pages = requests * tokens + 1
    conv_state = torch.randn(pages, tokens + 2, 3 * width)
    state = torch.randn(pages, H, K, K)
    out = torch.full((requests * tokens, width), float("nan"))
    expected = [t.clone() for t in (conv_state, state, out)]
    numbers = {"lower_bound": -3.0, "eps": 0.02}
    kda_decode_composed(projected, *weights, expected[0], expected[1], slots, accepted, expected[2], **numbers)
    counts = slots[:, 0] if accepted is None else accepted
    run(projected, weights, conv_state, state, slots, counts, out, pdl=False, **numbers)
    assert torch.equal(conv_state, expected[0])
    torch.testing.assert_close(state, expected[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, expected[2], rtol=1e-4, atol=1e-5)
"""


MOE_ROUTE = """
import torch
from runtime.kernels.common.launch.routing import empty_routing
from runtime.kernels.moe_route import moe_route
from runtime.kernels.moe_route.spec import MoeRouteSpec
from runtime.kernels.moe_route.triton_kernel import run

torch.manual_seed(0)
for tokens, site in [(1, {}), (21, {"first": 20, "local": 30}), (9, {"renormalize": False, "scaling": 2.0})]:
    spec = MoeRouteSpec(100, 5, **site)
    logits, bias = torch.randn(tokens, 100), torch.randn(100) * 0.1
    logits[tokens // 2, 7], logits[0, 8] = float("nan"), float("-inf")
    padding = torch.zeros(tokens, dtype=torch.bool)
    padding[tokens - 1] = tokens > 1
    numbers = {"renormalize": spec.renormalize, "scaling": spec.scaling, "first": spec.first, "local": spec.held}
    expected = moe_route(logits, bias, 5, padding=padding, **numbers)
    routing = empty_routing(tokens, 5, "cpu", first=spec.first, local=spec.held)
    routing.rows.fill_(-99)
    run(spec, logits, bias, padding.view(torch.uint8), routing, pdl=False)
    count = int(expected.count)
    assert torch.equal(routing.ids, expected.ids) and int(routing.count) == count
    assert torch.equal(routing.experts[:count], expected.experts[:count])
    assert torch.equal(routing.rows[:count], expected.rows[:count])
    torch.testing.assert_close(routing.weights, expected.weights, equal_nan=True)
"""

MOE_EXPERTS = """
from types import SimpleNamespace
import torch
from runtime.kernels.common.launch.routing import group_pairs
from runtime.kernels.moe_experts import moe_experts
from runtime.kernels.moe_experts.layout import pack_humming
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_experts.triton_kernel import run

torch.manual_seed(0)
E, K, I, SLOTS, T = 5, 128, 64, 3, 10
def weight(rows, columns, low, high):
    codes = torch.randint(0, 256, (E, rows, columns // 2), dtype=torch.uint8)
    return codes, torch.randint(low, high, (E, rows, columns // 32), dtype=torch.uint8)
for low, high in [(118, 123), (0, 2), (126, 140)]:
    w13, w2 = weight(2 * I, K, low, high), weight(K, I, 118, 123)
    w13[1][4, 3, 1] = 255
    x, weights = torch.randn(T, K), torch.rand(T, SLOTS)
    ids = torch.randint(-1, E + 1, (T, SLOTS))
    ids[0], ids[1, 0] = torch.tensor([0, 1, 2]), 4
    routing = group_pairs(ids, weights, first=0, local=E)
    space = SimpleNamespace(hidden=torch.full((T * SLOTS, I), 9.0), partial=torch.full((T * SLOTS, K), float("nan")))
    out = torch.full((T, K), float("nan"))
    spec = MoeExpertsSpec(K, I, E, SLOTS)
    run(spec, x, pack_humming(*w13), pack_humming(*w2), routing, space, out, pdl=False)
    expected = moe_experts(x, weights, ids, w13, w2)
    assert out[1].isnan().all() and out[0].isfinite().all()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
"""

MLA_DECODE = """
import torch
from types import SimpleNamespace
from runtime.kernels.mla import triton_core, triton_sides
from runtime.kernels.mla.composed import mla_query, mla_core, mla_value
from runtime.kernels.mla.sharded import merge_partials, shard_length
from runtime.kernels.mla.shapes import split, parts_of

torch.manual_seed(0)
DN, KEY, L, V, R, BLOCK = 16, 16, 32, 16, 48, 24
EPS, SCALE = 0.3, 0.21
CASES = [  # heads, tokens, lengths, span, ctas, ranks, rank
    (3, 1, [1], 1, 4, 1, 0),
    (12, 1, [200, 0, 31, 33, 1], 2, 5, 1, 0),
    (6, 3, [70, 2, 0], 1, 3, 1, 0),
    (17, 4, [50, 33], 1, 5, 1, 0),
    (3, 2, [100, 2, 0, 41], 1, 4, 3, 1),
    (2, 2, [1, 97], 1, 9, 3, 2),
]
for heads, tokens, lengths, span, ctas, ranks, rank in CASES:
    spec = SimpleNamespace(heads=heads, tokens=tokens, eps=EPS, scale=SCALE, ranks=ranks, rank=rank)
    way, rows = split(heads, tokens, span, ctas), len(lengths) * tokens
    projected = torch.randn(rows, R + L + KEY + heads * V)
    q_a, kv_a, gate = projected.split([R, L + KEY, heads * V], 1)
    q_norm, kv_norm = torch.rand(R) + 0.5, torch.rand(L) + 0.5
    w_qb, kv_b = torch.randn(heads * (DN + KEY), R) / 7, torch.randn(heads, DN + V, L) / 4
    w_uk, w_uv = kv_b[:, :DN], kv_b[:, DN:]
    held = [shard_length(n, ranks, rank) for n in lengths]
    pages = [-(-n // BLOCK) for n in held]
    cache = torch.full((sum(pages) + 2, BLOCK, L + KEY), float("nan"))
    table = torch.full((len(lengths), 12), -1, dtype=torch.int32)
    order, slots = (torch.randperm(sum(pages)) + 1).tolist(), []
    for b, n in enumerate(lengths):
        table[b, : pages[b]] = torch.tensor([order.pop() for _ in range(pages[b])], dtype=torch.int32)
        for position in range(n):
            if position % ranks == rank and position < n - tokens:
                row = position // ranks
                cache[table[b, row // BLOCK], row % BLOCK] = torch.randn(L + KEY)
        for position in range(n - tokens, n):
            row, here = position // ranks, position >= 0 and position % ranks == rank
            slots.append(int(table[b, row // BLOCK]) * BLOCK + row % BLOCK if here else -1)
    if heads == 17:
        table[0, 1] = -1  # a page that is missing
    slots, n = torch.tensor(slots), torch.tensor(lengths, dtype=torch.int32)
    expected_cache = cache.clone()
    expected_query = mla_query(q_a, q_norm, w_qb, w_uk, EPS)
    site = {"eps": EPS, "scale": SCALE, "ranks": ranks, "rank": rank}
    expected_o, expected_lse = mla_core(expected_query, kv_a, kv_norm, expected_cache, table, n, slots, **site)
    expected = mla_value(expected_o[None], expected_lse[None], w_uv, gate)

    q, query = torch.full((rows, heads, DN + KEY), float("nan")), torch.full((rows, heads, L + KEY), float("nan"))
    triton_sides.run_query(spec, q_a, q_norm, w_qb, q, pdl=False)
    triton_sides.run_absorb(q, w_uk, query, pdl=False)
    torch.testing.assert_close(query, expected_query, rtol=1e-4, atol=1e-4)
    places = way.places(len(lengths))
    o, lse = torch.full((places, way.rows, L), float("nan")), torch.full((places, way.rows), float("nan"))
    triton_core.run(spec, way, query, kv_a, kv_norm, cache, table, n, slots, o, lse, pdl=False)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-5, atol=1e-5, equal_nan=True)
    used = sorted(place for part in parts_of(held, way) for place in part)
    assert used == (~lse.isnan()).any(1).nonzero().flatten().tolist()
    merged, merged_lse = torch.full((rows, heads, L), float("nan")), torch.full((rows, heads), float("nan"))
    triton_sides.run_merge(spec, way, o, lse, n, merged, merged_lse, pdl=False)
    torch.testing.assert_close(merged, expected_o, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(merged_lse, expected_lse, rtol=1e-4, atol=1e-5)
    out = torch.full((rows, heads * V), float("nan"))
    triton_sides.run_value(spec, way, o, lse, n, w_uv, gate, out, pdl=False)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    shards, shard_lse = torch.randn(3, rows, heads, L), torch.randn(3, rows, heads) * 90
    shard_lse[1, 0], shards[1, 0], shard_lse[:, rows - 1] = float("-inf"), float("nan"), float("-inf")
    out.fill_(float("nan"))
    triton_sides.run_value(spec, way, shards, shard_lse, n, w_uv, gate, out, shards=3, pdl=False)
    torch.testing.assert_close(out, mla_value(shards, shard_lse, w_uv, gate), rtol=1e-4, atol=1e-4)
"""


SCRIPTS = {
    "attn_res": ATTN_RES,
    "kda_decode": KDA_DECODE,
    "moe_route": MOE_ROUTE,
    "moe_experts": MOE_EXPERTS,
    "mla_decode": MLA_DECODE,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_triton_kernel_equals_the_reference_in_the_interpreter(script):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
