"""Top-k over no rows at all, in vLLM's own sampler: it ends an engine that verifies drafts of nobody."""

from __future__ import annotations

import subprocess
import sys

CASE = """
import torch
from vllm.v1.sample.ops import topk_topp_sampler as sampler
from runtime.engine import upstream_fixes

def masked(rows):
    logits = torch.arange(rows * 5, dtype=torch.float32).reshape(rows, 5)
    return sampler.apply_top_k_top_p_pytorch(logits, torch.full((rows,), 2), None, allow_cpu_sync=True)

some = masked(3)
try:
    masked(0)
except RuntimeError:
    print("upstream breaks")
upstream_fixes.fix_top_k_of_nothing()
upstream_fixes.fix_top_k_of_nothing()
assert masked(0).shape == (0, 5)
assert torch.equal(masked(3), some) and int(torch.isfinite(some).sum()) == 6
print("repaired")
"""


def test_verifying_no_drafts_with_top_k_is_harmless() -> None:
    # imported by a child: vLLM stays out of this process
    env = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_PLUGINS": "",
        "PATH": "",
        "HOME": "/",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", CASE], capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["upstream", "breaks", "repaired"]
