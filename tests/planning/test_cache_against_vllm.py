"""Cache geometry and capacity equal those of vLLM's own planning code, run on Kimi K3's layers in a child process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3ctl.facts.k3 import K3
from k3ctl.planning import kvcache
from k3ctl.planning.kvcache import CacheSettings
from k3ctl.planning.weights import Parallel

pytestmark = pytest.mark.engine

CASES = {
    "tp8": CacheSettings(Parallel(tp=8)),
    "tp8-k7": CacheSettings(Parallel(tp=8), draft_tokens=7),
    "tp8-k8-no-prefix-caching": CacheSettings(Parallel(tp=8), draft_tokens=8, prefix_caching=False),
    "tp8-fp8-k7-drafter": CacheSettings(Parallel(tp=8), "fp8", draft_tokens=7, drafter_mla_layers=5),
    "tp16-fp8-k7-drafter": CacheSettings(Parallel(tp=16), "fp8", draft_tokens=7, drafter_mla_layers=5),
    "tp16-dcp16": CacheSettings(Parallel(tp=16, dcp=16), "fp8", draft_tokens=7, drafter_mla_layers=5),
    "tp8-bf16-state": CacheSettings(Parallel(tp=8), ssm_bytes=2),
    "tp8-pp2": CacheSettings(Parallel(tp=8, pp=2)),
}
LENGTHS = (9000, 131_072, 1_048_576)
BLOCKS = 10_000


@pytest.fixture(scope="module")
def answers():
    pytest.importorskip("vllm")
    cases = [
        {
            "tp": s.parallel.tp,
            "pp": s.parallel.pp,
            "dcp": s.parallel.dcp,
            "drafts": s.draft_tokens,
            "prefix_caching": s.prefix_caching,
            "block_tokens": kvcache.geometry(s).block_tokens,
            "kda_page": kvcache.recurrent_bytes(s) + kvcache.conv_bytes(s),
            "mla_row": K3.kv_width * s.kv_bytes,
            "drafter_layers": s.drafter_mla_layers,
            "length": length,
            "blocks": BLOCKS,
        }
        for s in CASES.values()
        for length in LENGTHS
    ]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cache_probe.py"))],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = iter(json.loads(done.stdout.splitlines()[-1]))
    return {(name, length): next(found) for name in CASES for length in LENGTHS}


@pytest.mark.parametrize("name", CASES)
def test_layer_groups_are_vllms(answers, name):
    found = kvcache.geometry(CASES[name])
    answer = answers[name, LENGTHS[0]]
    assert answer["pages"] == found.layers_per_block
    assert answer["groups"] == 1 + found.kda_groups


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_sequences_that_fit_are_vllms(answers, name, length):
    found = kvcache.geometry(CASES[name])
    answer = answers[name, length]
    assert answer["blocks"] == pytest.approx(found.blocks_for(length))
    assert answer["fits"] == pytest.approx(found.sequences(BLOCKS, length))
