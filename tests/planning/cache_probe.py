"""Run with vLLM in a child: vLLM's own cache planning for Kimi K3's layers. Reads and writes JSON.

Input: a list of {tp, pp, dcp, drafts, prefix_caching, block_tokens, kda_page, mla_row, drafter_layers, length, blocks};
output per entry: pages per pool block on the fullest pipeline stage, blocks of one request, requests that fit.
"""

import itertools
import json
import sys
from types import SimpleNamespace

import torch
from vllm.v1.core.kv_cache_planning import (
    _get_kv_cache_groups_uniform_page_size,
    _project_kv_cache_groups_to_worker,
)
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import MambaSpec, MLAAttentionSpec

MLA = {*range(3, 92, 4), 92}


def specs(case):
    page = case["block_tokens"] * case["mla_row"]
    mla = MLAAttentionSpec(
        block_size=case["block_tokens"], num_kv_heads=1, head_size=case["mla_row"], dtype=torch.uint8
    )
    kda = MambaSpec(
        shapes=((case["kda_page"],),),
        dtypes=(torch.uint8,),
        block_size=case["block_tokens"],
        page_size_padded=page,
        mamba_cache_mode="align" if case["prefix_caching"] else "none",
        num_speculative_blocks=case["drafts"],
        num_prefill_checkpoint_blocks=1 if case["prefix_caching"] else 0,
    )
    found = {f"layer.{i}": mla if i in MLA else kda for i in range(93)}
    return found | {f"draft.{i}": mla for i in range(case["drafter_layers"])}


def answer(case):
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=case["length"]),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=case["dcp"], prefill_context_parallel_size=1
        ),
        cache_config=SimpleNamespace(mamba_cache_mode="align" if case["prefix_caching"] else "none"),
    )
    layers = specs(case)
    groups = _get_kv_cache_groups_uniform_page_size(layers)
    bounds = [0, 93] if case["pp"] == 1 else [0, 47, 93]
    widths = []
    for first, last in itertools.pairwise(bounds):
        stage = {
            n: s for n, s in layers.items() if n.startswith("draft") or first <= int(n.split(".")[1]) < last
        }
        worker = _project_kv_cache_groups_to_worker(groups, stage)
        widths.append(max(len(group.layer_names) for group in worker))
    pool = SimpleNamespace(kv_cache_groups=groups, num_blocks=case["blocks"], hisparse_host_num_blocks=None)
    fits = get_max_concurrency_for_kv_cache_config(config, pool)
    return {"pages": max(widths), "groups": len(groups), "blocks": case["blocks"] / fits, "fits": fits}


json.dump([answer(case) for case in json.load(sys.stdin)], sys.stdout)
