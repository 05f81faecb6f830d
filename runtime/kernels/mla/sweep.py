"""Time launch shapes of MLA's attention core, unattended: `python -m runtime.kernels.mla.sweep --log FILE`.

The core alone, its pages settled, calls chained in one graph; results are written case by case. A shape that cannot be
compiled or launched, or whose result differs, is named and left out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.bench import (
    H200_BYTES_PER_S,
    Result,
    append,
    buffer_sets,
    machine,
    measure,
)
from runtime.kernels.common.workshop.testing import relative_error
from runtime.kernels.mla.bench_steps import random_step, random_weights
from runtime.kernels.mla.dispatch import MlaDecode
from runtime.kernels.mla.shapes import LATENT, ROW
from runtime.kernels.mla.spec import MlaDecodeSpec
from runtime.kernels.mla.table import Launch

SPANS = (1, 2, 4, 8, 16, 32)
STAGES = (None, 3)


def sweep(heads: int, tokens: int, requests: int, context: int, log: Path, where: dict) -> None:
    """Measure every shape in one case, and append the results."""
    spec = MlaDecodeSpec(heads, tokens, overlap=Overlap(True, True))
    op = MlaDecode(spec, *random_weights(spec).operands, provider="cute")
    moved = requests * context * ROW * 2
    sets = 1 if moved > 1e9 else min(16, buffer_sets(moved))
    steps = [random_step(spec, [context] * requests, seed=i, unused=0.0) for i in range(sets)]
    query = torch.randn(requests * tokens, heads, ROW, device="cuda").bfloat16()
    space, good, expected = op.buffers(requests), {}, None
    o = torch.empty(len(query), heads, LATENT, device="cuda")
    lse = torch.empty(len(query), heads, device="cuda")
    for launch in (Launch(0, span, stages) for stages in STAGES for span in SPANS):
        name = f"span={launch.span} stages={launch.stages}"
        try:
            calls = [lambda s=s, w=launch: op.core(query, s.kv_a, s.context, space, w) for s in steps]
            op.attend(query, steps[0].kv_a, steps[0].context, space, o, lse, launch=launch)
            torch.cuda.synchronize()
        except Exception as error:  # whatever one shape does, the others go on
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        expected = o.clone() if expected is None else expected
        if not relative_error(o, expected) < 5e-3:
            print(f"{name}: result differs, {relative_error(o, expected):.2e}", flush=True)
            continue
        good[name] = calls
    times = measure(good, min_calls=16, rounds=7)
    values = {"heads": heads, "tokens": tokens, "requests": requests, "context": context}
    append(log, [Result("mla_core", values, f"shape {n}", t, moved, machine=where) for n, t in times.items()])
    ranked: Sequence = sorted(times.items(), key=lambda item: item[1].median_us)
    floor = moved / H200_BYTES_PER_S * 1e6
    print(values, f"floor {floor:.1f}", *(f"{n} {t.median_us:.2f}" for n, t in ranked), sep="  ", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, default=Path("docs/log/mla_sweep.jsonl"))
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--context", type=int, nargs="+", default=[200, 8192, 120_000])
    options = parser.parse_args()
    where = machine()
    for tokens in options.tokens:
        for context in options.context:
            for requests in options.requests:
                sweep(options.heads, tokens, requests, context, options.log, where)


if __name__ == "__main__":
    main()
