"""What counted steps mean: which path counts, why, and whose kernels ran; the same for every command."""

from __future__ import annotations

import pytest

from k3ctl.deployment import Deployment
from k3ctl.loadtest import scrape
from k3ctl.server import witness
from k3ctl.server.witness import StepCount, StepKey
from k3ctl.telemetry import snapshot
from k3ctl.telemetry.view import PathView, View

OURS = StepKey("specialized", "decode", "full", "", "mix,attend")
STOCK = StepKey("specialized", "decode", "full", "", "none")
VLLM = StepKey("specialized", "decode", "full", "")
MIXED = StepKey("standard", "mixed", "eager", "prefill-in-batch")
STANDARD = StepKey("standard", "decode", "full", "rows-over-limit")
PREFILL = StepKey("standard", "prefill", "eager", "prefill")


def steps(**counts: int) -> witness.Counts:
    return {globals()[name]: StepCount(n, n, n) for name, n in counts.items()}


@pytest.mark.parametrize("slots", sorted(witness.STOCK_SLOTS))
def test_a_specialized_step_of_stock_kernels_counts_as_standard(slots: str) -> None:
    key = StepKey("specialized", "decode", "full", "", slots)
    assert (key.ran, key.why) == ("standard", "slots-stock")
    assert witness.engagement({key: StepCount(5, 5, 5)}) == 0
    assert witness.by_reason({key: StepCount(5, 5, 5)}) == (("slots-stock", 5),)
    assert witness.own_slots({key: StepCount(5, 5, 5)}) == ()


@pytest.mark.parametrize("key", [OURS, VLLM])
def test_a_specialized_step_of_other_kernels_is_one(key: StepKey) -> None:
    assert (key.ran, key.why) == ("specialized", "")
    assert witness.engagement({key: StepCount(5, 5, 5)}) == 1


def test_shares_and_reasons_add_up() -> None:
    counts = steps(OURS=10, STOCK=6, MIXED=3, STANDARD=1, PREFILL=100)
    assert witness.engagement(counts) == 0.5
    assert witness.by_reason(counts) == (("slots-stock", 6), ("prefill-in-batch", 3), ("rows-over-limit", 1))
    assert witness.own_slots(counts) == ("mix,attend",)


def test_every_reason_has_words() -> None:
    assert {key.why for key in (STOCK, MIXED, STANDARD)} <= set(witness.REASONS)


def test_a_bench_counts_stock_slots_as_standard_too() -> None:
    page = {
        "schema": "k3.witness/1", "rank": 0, "pid": 1, "started_at": 1.0, "decode_backend": "hopper",
        "steps": [
            {"path": "specialized", "kind": "decode", "mode": "full", "reason": "", "slots": slots,
             "steps": n, "rows": n, "tokens": n}
            for slots, n in (("mix,attend", 8), ("none", 2))
        ],
    }  # fmt: skip
    found = scrape.engagement({"schema": witness.TABLE_SCHEMA, "workers": [page]})
    assert found is not None
    assert (found.specialized, found.decode_and_mixed, found.reasons) == (8, 10, {"slots-stock": 2})


def test_a_snapshot_names_the_slots_that_are_ours() -> None:
    counts = steps(OURS=10, STOCK=10)
    path = PathView("last 60 s", counts=counts, total=counts, engagement=witness.engagement(counts))
    view = View(0.0, Deployment(), path=path)
    text = "\n".join(snapshot.lines(view))
    assert "50.0 % of 20 decode steps specialized" in text
    assert "our kernels: mix,attend\n" in text and "standard: stock kernels in every slot (10 steps)" in text
    assert snapshot.to_json(view)["path"]["own_slots"] == ["mix,attend"]
