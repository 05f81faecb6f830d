"""The demo's table: no cell holds a number that a guard disbelieves, whatever the row and whatever is waived."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from k3ctl import demo
from k3ctl.loadtest import guards, judged, workload
from k3ctl.loadtest.guards import GuardEvidence
from k3ctl.loadtest.rows import Row, Stat
from k3ctl.loadtest.window import PathShare, ServerWindow
from k3ctl.verdict.judge import Grade
from tests.loadtest.results import TARGET

SMOKE = workload.load("smoke")
GOOD = Row(
    concurrency=1, window_s=5.0, completed=40, errored=0, incomplete=0, completed_whole_run=40,
    output_tok_s=128.0, total_tok_s=None, request_s=8.0,
    latency_s=Stat(mean=0.125, std=0.001, min=0.12, max=0.13, count=40),
    ttft_ms=Stat(mean=21.0, p50=21.0, count=40), ttfot_ms=Stat(mean=21.0, count=40),
    itl_ms=Stat(mean=7.0, p50=7.0, p90=7.1, count=40), prompt_tokens=Stat(mean=32, count=40),
    output_tokens=Stat(mean=16, count=40), tokens_per_chunk=Stat(mean=1.0, std=0.0, count=40),
)  # fmt: skip
SERVER = ServerWindow(5.0, output_tok_s=127.0, tpot_ms=7.1, path=PathShare(50, 60, {}))
TTFT, ITL, OUTPUT, STEPS = 1, 2, 3, 6
"""Places in a line of the table."""

figure = st.one_of(
    st.none(), st.floats(0.001, 1e4), st.sampled_from([-1.0, 0.0, math.inf, math.nan, 7.0, 21.0])
)
stat = st.builds(
    Stat, count=st.integers(0, 99), **dict.fromkeys(("mean", "p50", "p90", "std", "min", "max"), figure)
)
row = st.builds(
    replace, st.just(GOOD), completed=st.integers(0, 60), errored=st.integers(0, 3), output_tok_s=st.one_of(
        st.floats(0.001, 1e4), st.sampled_from([0.0, -3.0, math.nan, math.inf, 128.0])
    ), latency_s=st.one_of(st.just(GOOD.latency_s), stat), ttft_ms=st.one_of(st.just(GOOD.ttft_ms), stat),
    itl_ms=st.one_of(st.just(GOOD.itl_ms), stat), output_tokens=st.one_of(st.just(GOOD.output_tokens), stat),
    prompt_tokens=st.one_of(st.just(GOOD.prompt_tokens), stat), partial=st.booleans(),
    stopped_by_errors=st.booleans(),
)  # fmt: skip
server = st.one_of(
    st.none(),
    st.builds(
        replace, st.just(SERVER), tpot_ms=figure, output_tok_s=figure, restarted=st.booleans(),
        clock_jump_s=st.sampled_from([0.0, 0.0, 9.0]), prefix_hit_share=st.sampled_from([None, 0.0, 0.5]),
        path=st.sampled_from([None, SERVER.path]),
    ),
)  # fmt: skip


def table_line(row: Row, window: ServerWindow | None, waive: dict[str, str]) -> tuple[list[str], set[str]]:
    """The demo's line for a row, and what each guard says of it before any waiver."""
    load = replace(SMOKE, waive=waive)
    evidence = GuardEvidence(row, load, TARGET.deployment, window, None)
    refused = {
        finding.guard
        for guard in guards.GUARDS
        for finding in guard(evidence)
        if finding.level == guards.INVALID
    }
    bench = {"rows": [judged_row(row, load, window)]}
    result = demo.DemoResult(Verdict(), bench, "", "")  # type: ignore[arg-type]
    return demo.table_rows(result)[0], refused


def judged_row(row: Row, load: Any, window: ServerWindow | None) -> dict[str, Any]:
    with mock.patch.object(judged, "server_window", lambda *_: window):
        return judged.judge_row(row, load, TARGET)


class Verdict:
    grade = Grade.PROVED


@settings(max_examples=150, deadline=None)
@given(row, server, st.sampled_from([{}, dict(SMOKE.waive), {"errors": "x", "restart": "y", "bursts": "z"}]))
def test_a_cell_is_a_believed_number_or_says_why_it_is_none(
    row: Row, window: ServerWindow | None, waive: dict[str, str]
) -> None:
    cells, refused = table_line(row, window, waive)
    narrow = {"bursts": {ITL}, "little": {OUTPUT}}
    for place, value in ((TTFT, row.ttft_ms.mean), (ITL, row.itl_ms.mean), (OUTPUT, row.output_tok_s)):
        cell = cells[place]
        assert "nan" not in cell and "inf" not in cell and not cell.startswith("-")
        against = {name for name in refused if place in narrow.get(name, {TTFT, ITL, OUTPUT})}
        if against:
            assert cell.endswith("(server's)") or (cell.startswith("– (") and against <= named(cell)), against
        if cell.endswith("(server's)"):
            assert not against - {"bursts", "little"}
        elif not cell.startswith("–"):
            assert cell == f"{value:.1f}"
    if refused & {"restart", "clock", "partial"}:
        assert cells[STEPS].startswith("– (")


def named(cell: str) -> set[str]:
    return set(cell.removeprefix("– (").removesuffix(")").split(", "))


@pytest.mark.parametrize("waive", [{}, dict(SMOKE.waive)], ids=["as it is", "waived"])
@pytest.mark.parametrize(
    ("worse", "window", "place", "cell"),
    [
        ({}, SERVER, ITL, "7.0"),
        ({"itl_ms": Stat(mean=1.0, count=40)}, SERVER, ITL, "7.1 (server's)"),
        ({"itl_ms": Stat(mean=5.0, count=40)}, SERVER, ITL, "7.1 (server's)"),  # only cautioned
        ({"itl_ms": Stat(mean=1.0, count=40)}, replace(SERVER, tpot_ms=None), ITL, "1.0"),  # nobody knows better
        ({"itl_ms": Stat(mean=1.0, count=40)}, replace(SERVER, tpot_ms=math.inf), ITL, "– (bursts)"),
        ({"output_tok_s": 400.0}, SERVER, OUTPUT, "127.0 (server's)"),
        ({"output_tok_s": 400.0}, None, OUTPUT, "– (little)"),
        ({"output_tok_s": 400.0}, SERVER, TTFT, "21.0"),
        ({"errored": 1}, SERVER, TTFT, "– (errors)"),
        ({"output_tokens": Stat(mean=3, count=40)}, SERVER, OUTPUT, "– (output-length, little)"),
        ({}, replace(SERVER, restarted=True), STEPS, "– (restart)"),
        ({}, replace(SERVER, prefix_hit_share=0.9), TTFT, "– (prefix-cache)"),
        ({"output_tok_s": math.nan}, SERVER, OUTPUT, "– (errors)"),
    ],
)  # fmt: skip
def test_what_a_guard_refuses_is_replaced_and_the_rest_stays(
    worse: dict[str, Any], window: ServerWindow | None, place: int, cell: str, waive: dict[str, str]
) -> None:
    assert table_line(replace(GOOD, **worse), window, waive)[0][place] == cell


def test_a_guard_nobody_listed_refuses_everything_that_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lateness(_: GuardEvidence) -> Any:
        yield guards.GuardFinding("lateness", guards.INVALID, "late")

    monkeypatch.setattr(guards, "GUARDS", (*guards.GUARDS, lateness))
    cells, _ = table_line(GOOD, SERVER, {})
    assert [cells[place] for place in (TTFT, ITL, OUTPUT)] == ["– (lateness)"] * 3
