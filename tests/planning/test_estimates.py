"""Floors equal the published table; calibration gives back the published speeds."""

import pytest

from k3ctl.facts.products import PRODUCTS
from k3ctl.facts.published import decode_curve
from k3ctl.planning import estimate as speed
from k3ctl.planning.roofline import Step, floor_seconds, operators, touched_experts

from .building import deployment

BATCHES = (1, 2, 4, 8, 16, 32, 64)
FLOORS_MS = {
    ("H200", 8, False): (6.36, 7.14, 8.66, 11.54, 16.75, 25.29, 36.95),
    ("H200", 8, True): (4.20, 4.98, 6.49, 9.37, 14.58, 23.12, 34.75),
    ("H200", 16, True): (2.21, 2.60, 3.37, 4.84, 7.49, 11.85, 17.87),
    ("B300", 8, False): (3.42, 3.84, 4.65, 6.20, 9.00, 13.60, 19.86),
    ("B300", 8, True): (2.26, 2.67, 3.49, 5.04, 7.84, 12.43, 18.68),
    ("B300", 16, False): (2.43, 2.64, 3.06, 3.85, 5.28, 7.63, 10.87),
    ("B300", 16, True): (1.19, 1.40, 1.81, 2.60, 4.02, 6.37, 9.60),
}
FRACTIONS = {
    (8, True): (0.44, 0.42, 0.47, 0.52, 0.62, 0.66, 0.69),
    (16, True): (0.30, 0.31, 0.32, 0.38, 0.44, 0.51, 0.54),
    (8, False): (0.42, 0.41, 0.41, 0.44, 0.50, 0.54, 0.56),
    (16, False): (0.33, 0.30, 0.30, 0.31, 0.34, 0.37, 0.38),
}


@pytest.mark.parametrize(("gpu", "tp", "split"), FLOORS_MS, ids=str)
def test_whole_step_floors(gpu, tp, split):
    found = [floor_seconds(Step(tp, b, split_projections=split), PRODUCTS[gpu].rates) * 1e3 for b in BATCHES]
    assert tuple(round(value, 2) for value in found) == FLOORS_MS[gpu, tp, split]


@pytest.mark.parametrize(
    ("context", "dcp", "floors"),
    [
        (8192, 1, (2.28, 2.73, 3.60, 5.26)),
        (122_880, 1, (2.68, 3.52, 5.19, 8.44)),
        (122_880, 8, (2.31, 2.78, 3.70, 5.47)),
    ],
)
def test_floors_at_long_context(context, dcp, floors):
    found = [floor_seconds(Step(8, b, context, dcp=dcp), PRODUCTS["B300"].rates) * 1e3 for b in (1, 2, 4, 8)]
    assert tuple(round(value, 2) for value in found) == floors


@pytest.mark.parametrize(("rows", "experts"), [(1, 16.0), (8, 120.3), (64, 613.2)])
def test_distinct_experts(rows, experts):
    assert round(touched_experts(rows), 1) == experts


def test_a_step_moves_its_operators_bytes():
    step = Step(8, 1)
    assert (
        round(sum(op.calls * (op.weight_bytes + op.other_bytes) for op in operators(step)) / 1e9, 1) == 18.0
    )
    assert sum(op.calls for op in operators(step) if op.name == "kda core") == 69


@pytest.mark.parametrize(("tp", "specialized"), FRACTIONS, ids=str)
def test_published_fractions_of_the_floor(tp, specialized):
    found = [speed.fraction_of_floor(tp, batch, specialized=specialized) for batch in BATCHES]
    assert tuple(round(value, 2) for value in found) == FRACTIONS[tp, specialized]


def test_fractions_between_batches_are_between_theirs():
    low, high = (speed.fraction_of_floor(8, rows, specialized=True) for rows in (8, 16))
    assert low < speed.fraction_of_floor(8, 12, specialized=True) < high


@pytest.mark.parametrize(("base", "tp"), [("gb300-tp16", 16), ("gb300-tp8", 8)])
def test_without_speculation_the_published_speeds_come_back(base, tp):
    made = deployment(base, {"speculative_config": None, "max_num_seqs": 64})
    for batch, tok_s in zip(BATCHES, decode_curve("GB300", tp).tok_s, strict=True):
        found = speed.estimate(made, concurrency=batch, context=1, specialized=True)
        assert found.tok_s == pytest.approx(tok_s, rel=1e-3)
        standard = speed.estimate(made, concurrency=batch, context=1, specialized=False)
        assert standard.path == "standard" and standard.tok_s < found.tok_s


def test_the_published_speed_with_synthetic_acceptance_comes_back():
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 6.0}
    made = deployment(changes={f"speculative_config.{key}": value for key, value in synthetic.items()})
    assert speed.estimate(made, concurrency=1, context=1, specialized=True).tok_s == pytest.approx(
        842, rel=0.005
    )
    assert speed.estimate(made, concurrency=1, context=1, specialized=False).tok_s == pytest.approx(
        488, rel=0.01
    )


def test_more_than_64_rows_are_estimated_as_standard():
    made = deployment(changes={"max_num_seqs": 16})
    found = speed.estimate(made, concurrency=16, context=9000, specialized=True)
    assert found.path == "standard" and "128 here" in found.basis


@pytest.mark.parametrize("base", ["gb300-tp16", "b300-tp8", "h200-tp8-pp2", "h200-tp16"])
def test_every_estimate_says_on_what_it_rests(base):
    found = speed.estimate(deployment(base), concurrency=1, context=9000, specialized=False)
    assert found.json()["label"] == "estimate"
    assert "published for" in found.basis
    assert ("guess by analogy" in found.basis) == (not base.startswith("gb300"))


def test_the_cpu_engine_gets_no_estimate():
    assert speed.estimate(deployment("cpu-tiny"), concurrency=1, context=100, specialized=True) is None
