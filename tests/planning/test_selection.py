"""The right profile for the hardware, and why each other one lost."""

from pathlib import Path

import pytest

from k3ctl.planning.detect import from_snapshots, given
from k3ctl.planning.hardware import described
from k3ctl.planning.proposal import Workload
from k3ctl.planning.selection import Objective, select
from k3ctl.profiles.loader import load_all, names

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="module")
def profiles():
    return load_all()


def snapshot(name):
    return given([str(FIXTURES / f"nvml-{name}.json")])


@pytest.mark.parametrize(
    ("name", "objective", "chosen"),
    [
        ("gb300-nvl72-4trays", "latency", "gb300-tp16"),
        ("gb300-nvl72-18trays", "latency", "gb300-tp16"),
        ("gb300-nvl72-4trays", "long-context", "gb300-tp16-dcp16"),
        ("gb300-nvl72-2trays", "latency", "gb300-tp8"),
        ("hgx-b300", "latency", "b300-tp8"),
        ("hgx-b300", "throughput", "b300-tp8"),
        ("no-driver", "latency", "cpu-tiny"),
    ],
)
def test_the_profile_for_a_snapshot(profiles, name, objective, chosen):
    found = select(profiles, snapshot(name), Objective(objective))
    assert found.chosen.profile.name == chosen
    assert found.chosen.reason


@pytest.mark.parametrize(
    "name",
    [
        "gb300-two-cliques",
        "hgx-h200",
        "hgx-b300-7of8",
        "hgx-b300-fm-down",
        "gb300-fabric-in-progress",
        "mig-enabled",
        "h200nvl-bridge4",
        "single-gpu",
        "dgx-spark",
    ],
)
def test_nothing_is_chosen_where_nothing_can_run(profiles, name):
    found = select(profiles, snapshot(name))
    assert found.chosen is None
    assert {candidate.profile.name for candidate in found.others} == set(names())
    assert all(candidate.reason for candidate in found.others)


def test_every_other_profile_says_why_it_lost(profiles):
    found = select(profiles, snapshot("gb300-nvl72-4trays"))
    reasons = {candidate.profile.name: candidate.reason for candidate in found.others}
    assert set(reasons) == set(names()) - {"gb300-tp16"}
    assert reasons["gb300-tp8"].startswith("estimated") and "against" in reasons["gb300-tp8"]
    assert reasons["b300-tp8"] == "needs B300, found GB300"
    assert "half of a pair" in reasons["gb300-pd-decode"]


def test_trays_of_two_domains_are_named(profiles):
    found = select(profiles, snapshot("gb300-two-cliques"))
    reason = next(c.reason for c in found.others if c.profile.name == "gb300-tp16")
    assert "tray00" in reason and "tray01" in reason and "clique 7" in reason


def test_one_h200_node_is_told_why_k3_does_not_fit(profiles):
    found = select(profiles, snapshot("hgx-h200"))
    assert found.shortfall == (
        "Kimi K3 does not fit: 8 x 141 = 1128 GB < 1680 GB minimum for the MXFP4 checkpoint"
    )


def test_two_h200_nodes_run_the_standard_path(profiles):
    found = select(profiles, described("H200:16"))
    assert found.chosen.profile.name == "h200-tp8-pp2"
    assert found.chosen.plan.verdict == "standard"


@pytest.mark.parametrize(
    ("concurrency", "overrides"),
    [
        (1, {}),
        (8, {}),
        (16, {"max_num_seqs": "16", "speculative_config.num_speculative_tokens": "3"}),
        (64, {"max_num_seqs": "64", "speculative_config": "none"}),
    ],
)
def test_speculation_shrinks_so_that_steps_stay_specialized(profiles, concurrency, overrides):
    found = select(profiles, described("B300:8"), Objective.THROUGHPUT, Workload(concurrency=concurrency))
    assert found.chosen.profile.name == "b300-tp8"
    assert dict(found.chosen.overrides) == overrides
    assert found.chosen.plan.estimate.path == "specialized"


def test_replicas_share_the_requests(profiles):
    found = select(profiles, described("GB300:16"), Objective.LATENCY, Workload(concurrency=8))
    half = next(c for c in found.others if c.profile.name == "gb300-tp8")
    assert (half.replicas, half.plan.deployment.workload.concurrency) == (2, 4)


def test_scores_within_the_estimates_error_are_not_ranked_by_them(profiles):
    found = select(profiles, snapshot("gb300-nvl72-4trays"))
    close = next(c for c in found.others if c.profile.name == "gb300-tp16-dcp16")
    assert close.score > found.chosen.score * 0.9
    assert "within the estimates' error" in close.reason


def test_two_snapshots_make_one_cluster():
    tray = FIXTURES / "nvml-gb300-nvl72-tray.json"
    both = given([str(tray), str(FIXTURES / "nvml-hgx-b300.json")])
    assert (both.product, both.gpus) == ("B300", 8)
    assert "tray00" in both.notes[-1]


@pytest.mark.parametrize("spec", ["B300:8", "GB300:16", "h200:16"])
def test_described_hardware_is_healthy(spec):
    found = described(spec)
    assert found.gpus == int(spec.split(":")[1])
    assert all(domain.multicast == "yes" for domain in found.domains)
    assert sum(domain.gpus for domain in found.domains) == found.gpus


def test_no_snapshot_is_no_hardware():
    assert from_snapshots([], "nothing").gpus == 0
