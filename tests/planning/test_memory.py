"""The memory numbers of Kimi K3, to the digits in which they were derived from vLLM 0.33.0."""

import pytest

from k3ctl.facts.k3 import K3, MAX_POSITIONS
from k3ctl.planning import kvcache, memory
from k3ctl.planning.kvcache import CacheSettings
from k3ctl.planning.memory import GIB, Settings
from k3ctl.planning.weights import Parallel, expert_partition, rank_weights


def cache(tp=8, kv="auto", drafts=0, **more):
    return CacheSettings(Parallel(tp=tp), kv_dtype=kv, draft_tokens=drafts, **more)


def kv_token_bytes(settings):
    """MLA cache of a token over all layers."""
    return len(K3.mla_layers) * K3.kv_width * settings.kv_bytes


def state_bytes(settings):
    """One copy of a request's KDA state over all layers on one rank."""
    return K3.kda_layers * (kvcache.recurrent_bytes(settings) + kvcache.conv_bytes(settings))


def plan(
    tp=8, gpu_bytes=288_400_343_040, drafts=7, seqs=8, kv="fp8", length=131_072, utilization=0.9, **more
):
    parallel = Parallel(tp=tp, **more)
    settings = CacheSettings(parallel, kv_dtype=kv, draft_tokens=drafts)
    return memory.plan(Settings(parallel, gpu_bytes, utilization, settings, seqs, length, specialized=True))


def test_the_layers_are_69_kda_and_24_mla():
    assert (K3.kda_layers, len(K3.mla_layers), K3.moe_layers) == (69, 24, 92)
    assert K3.mla_layers[:2] == (3, 7) and K3.mla_layers[-2:] == (91, 92)


@pytest.mark.parametrize(
    ("parallel", "parts", "total_gb", "total_gib"),
    [
        (Parallel(tp=4), (15.4, 3.5, 16.7, 1.2, 0.4, 361.6), 398.8, 371),
        (Parallel(tp=8), (7.8, 2.1, 13.7, 0.6, 0.2, 180.8), 205.1, 191.0),
        (Parallel(tp=16), (3.9, 1.4, 12.2, 0.3, 0.1, 120.5), 138.4, 128.9),
        (Parallel(tp=16, expert_parallel=True), (3.9, 1.4, 12.2, 0.3, 0.1, 90.4), 108.3, 100.9),
    ],
    ids=["tp4", "tp8", "tp16", "tp16-ep"],
)
def test_weight_bytes_per_rank(parallel, parts, total_gb, total_gib):
    found = rank_weights(parallel)
    values = (found.kda, found.mla, found.moe_bf16, found.embed_head, found.dense, found.experts)
    assert tuple(round(value / 1e9, 1) for value in values) == parts
    assert round(found.total / 1e9, 1) == total_gb
    assert found.total / GIB == pytest.approx(total_gib, abs=0.5 if total_gib == 371 else 0.05)


def test_expert_parallel_over_two_replicas_needs_107_gib():
    assert round(rank_weights(Parallel(tp=8, dp=2, expert_parallel=True)).total / GIB) == 107


def test_tp16_pads_the_experts_by_a_third():
    assert expert_partition(Parallel(tp=16)) == 256
    assert expert_partition(Parallel(tp=8)) == 384
    assert expert_partition(Parallel(tp=16, expert_parallel=True)) == 3072


def test_a_pipeline_stage_holds_half_and_its_end():
    stages = K3.stages(2)
    assert [len(stage) for stage in stages] == [47, 46]
    halves = rank_weights(Parallel(tp=8, pp=2)).total
    assert rank_weights(Parallel(tp=8)).total / 2 < halves < rank_weights(Parallel(tp=8)).total * 0.52


@pytest.mark.parametrize(("kv", "size"), [("auto", 27_648), ("fp8", 13_824)])
def test_mla_cache_bytes_per_token(kv, size):
    assert kv_token_bytes(cache(kv=kv)) == size


@pytest.mark.parametrize(
    ("tp", "recurrent", "conv", "fp32_mb", "bf16_mb"),
    [
        (1, 6_291_456, 221_184, 449.4, 232.3),
        (4, 1_572_864, 55_296, 112.3, 58.1),
        (8, 786_432, 27_648, 56.2, 29.0),
        (16, 393_216, 13_824, 28.1, 14.5),
    ],
)
def test_kda_state_bytes(tp, recurrent, conv, fp32_mb, bf16_mb):
    assert kvcache.recurrent_bytes(cache(tp)) == recurrent
    assert kvcache.conv_bytes(cache(tp)) == conv
    assert round(state_bytes(cache(tp)) / 1e6, 1) == fp32_mb
    assert round(state_bytes(cache(tp, ssm_bytes=2)) / 1e6, 1) == bf16_mb


def test_a_kda_state_weighs_as_much_as_thousands_of_tokens():
    state = state_bytes(cache())
    assert round(state / kv_token_bytes(cache())) in (2032, 2033)
    assert state // kv_token_bytes(cache(kv="fp8")) in (4063, 4064)


def test_each_draft_token_adds_9216_bytes_to_a_window():
    assert kvcache.conv_bytes(cache(drafts=1)) - kvcache.conv_bytes(cache()) == 9216


@pytest.mark.parametrize(
    ("tp", "kv", "sizes"),
    [
        (8, "auto", (768, 768, 768, 896)),
        (8, "fp8", (1536, 1536, 1536, 1664)),
        (16, "auto", (384, 384, 384, 512)),
        (16, "fp8", (768, 768, 768, 896)),
    ],
)
def test_block_tokens_step_up_from_seven_drafts_to_eight(tp, kv, sizes):
    found = tuple(kvcache.geometry(cache(tp, kv, drafts)).block_tokens for drafts in (0, 3, 7, 8))
    assert found == sizes


def test_a_pool_block_is_24_pages():
    assert round(kvcache.geometry(cache()).block_bytes / 1e6, 1) == 21.2
    assert round(kvcache.geometry(cache(16)).block_bytes / 1e6, 1) == 10.6
    assert kvcache.geometry(cache(drafter_mla_layers=5)).layers_per_block == 29


@pytest.mark.parametrize(
    ("settings", "blocks", "megabytes"),
    [
        ({"prefix_caching": False}, 24, 510),
        ({"prefix_caching": True}, 30, 637),
        ({"prefix_caching": False, "replayssm": True}, 3, 64),
        ({"prefix_caching": True, "replayssm": True}, 9, 191),
    ],
    ids=["plain", "prefix-caching", "replayssm", "replayssm-prefix-caching"],
)
def test_kda_blocks_of_a_running_request_at_seven_drafts(settings, blocks, megabytes):
    found = kvcache.geometry(cache(drafts=7, **settings))
    assert found.kda_blocks_per_request == blocks
    assert round(blocks * found.block_bytes / 1e6) == megabytes


def test_context_parallelism_stretches_a_block_over_more_tokens():
    one = kvcache.geometry(CacheSettings(Parallel(tp=16)))
    all_ = kvcache.geometry(CacheSettings(Parallel(tp=16, dcp=16)))
    assert all_.granule_tokens == 16 * one.granule_tokens
    assert all_.kda_blocks_per_request == one.kda_blocks_per_request


@pytest.mark.parametrize(("tp", "gigabytes"), [(8, 0.74), (16, 0.38)])
def test_specialized_decode_keeps_a_packed_copy(tp, gigabytes):
    assert round(memory.packed_front_bytes(tp) / 1e9, 2) == gigabytes


def test_buffers_per_sequence_slot():
    states = next(i for i in plan(seqs=1024).items if i.name == "FlashKDA states")
    assert round(states.size_bytes / 1e9, 1) == 1.6
    assert round(memory.replay_record_bytes(cache(drafts=7)) / 1e6, 1) == 6.8
    assert memory.replay_record_bytes(cache(drafts=7)) * 1024 / 1e9 == pytest.approx(6.9, abs=0.06)


def test_the_published_cache_budget_is_met():
    parallel = Parallel(tp=8)
    settings = CacheSettings(parallel, draft_tokens=8, prefix_caching=False)
    found = memory.plan(Settings(parallel, 288_400_343_040, 0.9, settings, 1024, None))
    assert found.cache_bytes / GIB == pytest.approx(46.48, abs=0.05)


def test_h200_fits_tp16_only_with_expert_parallelism():
    assert plan(tp=8, gpu_bytes=150_754_820_096, kv="auto").cache_bytes < 0
    assert plan(tp=16, gpu_bytes=150_754_820_096, kv="auto").cache_bytes < 0
    assert plan(tp=16, gpu_bytes=150_754_820_096, kv="auto", expert_parallel=True).fits


def test_more_requests_leave_shorter_sequences():
    found = plan()
    lengths = [found.longest(requests) for requests in (1, 4, 8, 16)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == MAX_POSITIONS
    used = 8 * found.geometry.blocks_for(found.longest(8))
    assert used <= found.blocks - 1 < used + 8


def test_what_fits_is_stated_for_the_length_of_the_workload():
    settings = Settings(Parallel(tp=8), 288_400_343_040, 0.9, cache(kv="fp8", drafts=7), 8, 131_072)
    short, long = memory.plan(settings, 9000), memory.plan(settings)
    assert (short.sequence_tokens, long.sequence_tokens) == (9000, 131_072)
    assert short.sequences > long.sequences
