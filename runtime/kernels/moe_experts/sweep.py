"""Time many launch shapes of both kernels, unattended: `python -m runtime.kernels.moe_experts.sweep --log FILE`.

Each kernel alone, groups settled, calls chained in one graph; results are written case by case. A shape that cannot be
compiled or launched, or whose result differs, is named and left out.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.bench import Result, append, machine, measure
from runtime.kernels.common.workshop.expert_sets import distinct, random_steps, random_weights
from runtime.kernels.common.workshop.testing import relative_error
from runtime.kernels.moe_experts import cute_launch
from runtime.kernels.moe_experts.dispatch import MoeExperts
from runtime.kernels.moe_experts.shapes import Down, GateUp
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_experts.table import Launch

GATE_UP = [
    GateUp(8, 1, 2, 2),
    GateUp(4, 4, 4, 2),
    GateUp(4, 2, 4, 2),
    GateUp(8, 2, 2, 2),
    GateUp(7, 4, 2, 2),
    GateUp(16, 1, 1, 2),
    GateUp(4, 1, 4, 2),
    GateUp(4, 1, 3, 4),
]
DOWN = [
    Down(4, 9, 4, 4),
    Down(4, 9, 4, 3),
    Down(16, 2, 1, 3),
    Down(4, 4, 2, 6),
    Down(4, 7, 3, 4),
    Down(8, 4, 2, 4),
    Down(8, 2, 1, 6),
    Down(2, 8, 4, 6),
]


# Both kernels in sequence, with and without bringing the second one's weights to the L2 cache.
FEW = [
    Launch(0, gate_up, down)
    for down in (Down(4, 4, 2, 6), Down(4, 4, 2, 6, True), Down(4, 9, 4, 4))
    for shape in (GateUp(4, 4, 4, 2), GateUp(8, 2, 2, 2), GateUp(7, 4, 2, 2))
    for gate_up in (shape, replace(shape, prefetch=True))
]
MANY = [
    Launch(0, gate_up, down)
    for gate_up in (GateUp(8, 1, 2, 2), GateUp(8, 2, 2, 2))
    for shape in (Down(4, 9, 4, 4), Down(4, 9, 4, 3), Down(4, 7, 3, 4))
    for down in (shape, replace(shape, prefetch=True))
]


def shapes(kernel: str, width: int, tokens: int) -> Iterator[GateUp | Down | Launch]:
    """Candidates of a kernel whose depth a job of this width allows, or of both in sequence ("pair")."""
    if kernel == "pair":
        yield from FEW if tokens <= 4 else MANY
        return
    for shape in GATE_UP if kernel == "gate_up" else DOWN:
        steps = 112 // (shape.warps * shape.cluster) if kernel == "gate_up" else width // 32
        if shape.depth <= steps:
            yield shape


def calls_of(kernel, shape, ops, steps, space):
    """One call per step with a launch shape."""
    pairs = [(ops[i % len(ops)], step) for i, step in enumerate(steps)]
    if kernel == "pair":
        return [lambda o=o, s=s: o(s.x, s.routing, space, s.out, launch=shape) for o, s in pairs]
    if kernel == "gate_up":
        run = cute_launch.run_gate_up
        return [
            lambda o=o, s=s: run(o.spec, s.x, o.w13, s.routing, space.hidden, o.w2, shape) for o, s in pairs
        ]
    run, scratch = cute_launch.run_down, (space.partial, space.counters)
    return [
        lambda o=o, s=s: run(o.spec, space.hidden, o.w2, s.routing, *scratch, s.out, shape) for o, s in pairs
    ]


def sweep(kernel: str, width: int, tokens: int, skew: float, ops, log: Path, where: dict) -> None:
    """Measure every shape of one kernel in one case, and append the results."""
    steps = random_steps(tokens, skew, sets=8)
    space = ops[0].buffers(tokens)
    space.hidden.normal_()
    good, expected = {}, None
    for shape in shapes(kernel, width, tokens):
        try:
            calls = calls_of(kernel, shape, ops, steps, space)
            calls[0]()
            torch.cuda.synchronize()
            result = (space.hidden if kernel == "gate_up" else steps[0].out).clone()
        except Exception as error:  # whatever one shape does, the others go on
            print(f"{kernel} {shape}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        expected = result if expected is None else expected
        if not relative_error(result, expected) < 3e-3:
            print(f"{kernel} {shape}: result differs, {relative_error(result, expected):.2e}", flush=True)
            continue
        good[str(shape)] = calls
    times = measure(good, min_calls=16, rounds=9)
    read = {"gate_up": 2, "down": 1, "pair": 3}[kernel] * width * 3584 * 17 // 32
    values = {
        "kernel": kernel,
        "width": width,
        "skew": skew,
        "tokens": tokens,
        "experts": round(distinct(steps), 1),
    }
    results = [
        Result("moe_experts", values, f"shape {name}", time, int(distinct(steps) * read), machine=where)
        for name, time in times.items()
    ]
    append(log, results)
    floor = distinct(steps) * read / 4.3e6
    ranked = sorted(times.items(), key=lambda item: item[1].median_us)
    print(values, f"floor {floor:.1f}", *(f"{n} {t.median_us:.2f}" for n, t in ranked), sep="  ", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, default=Path("docs/log/moe_experts_sweep.jsonl"))
    parser.add_argument(
        "--kernel", choices=["gate_up", "down", "pair"], nargs="+", default=["gate_up", "down"]
    )
    parser.add_argument("--width", type=int, nargs="+", default=[384, 192])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 2, 4, 16, 32])
    parser.add_argument("--skew", type=float, default=0.0)
    options = parser.parse_args()
    where = machine()
    for width in options.width:
        spec = replace(MoeExpertsSpec(width=width), overlap=Overlap(settled=True))
        ops = [MoeExperts(spec, *random_weights(width), provider="cute") for _ in range(2)]
        for tokens in options.tokens:
            for kernel in options.kernel:
                sweep(kernel, width, tokens, options.skew, ops, options.log, where)


if __name__ == "__main__":
    main()
