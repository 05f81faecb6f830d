"""Speculation: what the drafter is worth."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from k3ctl.facts.published import acceptance
from k3ctl.telemetry.measures import Acceptance
from k3ctl.telemetry.reference import Golden
from k3ctl.telemetry.rules import ARTEFACT_FACTOR, COLLAPSED_LENGTH
from k3ctl.telemetry.text import UNKNOWN, count, number, percent
from k3ctl.telemetry.view import View
from k3ctl.tui.screens.base import MonitorScreen
from k3ctl.tui.widgets.bars import bar, fit
from k3ctl.tui.widgets.chart import TimeChart
from k3ctl.tui.widgets.panel import Panel, Tile


class SpeculationScreen(MonitorScreen):
    """Acceptance length and the curve over draft positions."""

    MODE = "speculation"

    def body(self) -> ComposeResult:
        """Length, curve, history."""
        with Horizontal(id="spec-top"):
            yield Tile("acceptance", id="length")
            yield Panel("accepted per draft position", id="positions")
        with Horizontal(id="spec-bottom"):
            yield TimeChart("acceptance length", id="length-plot")
            yield Panel("verdict", id="verdict")

    def show_body(self, view: View) -> None:
        """Redraw."""
        data = view.load.acceptance
        caption = [f"of at most {data.draft_tokens + 1}" if data else "no drafts counted"]
        caption += [f"golden {view.golden.length:.2f}"] if view.golden else []
        self.query_one("#length", Tile).show(
            f"{data.length:.2f}" if data else UNKNOWN, "tokens/step", *caption
        )
        positions = self.query_one("#positions", Panel)
        positions.show(*_position_lines(view, positions.inner_width))
        plot = self.query_one("#length-plot", TimeChart)
        plot.show([(p.t, p.acceptance_length) for p in view.history], view.now)
        verdict = self.query_one("#verdict", Panel)
        verdict.show(*_verdict_lines(view, verdict.inner_width))


def _position_lines(view: View, width: int) -> list[Content | str]:
    data = view.load.acceptance
    if data is None:
        return [
            Content.styled(
                "this server counts no drafts: speculation is off or has not run yet", "$secondary"
            )
        ]
    golden = view.golden.rates if view.golden else ()
    bar_width = max(8, width - 24)
    lines: list[Content | str] = []
    for position, rate in enumerate(data.rates):
        expected = golden[position] if position < len(golden) else None
        against = f"  ┃ {expected:.2f}" if expected is not None else ""
        lines.append(
            Content.assemble(
                (f"{position + 1:>3}  ", "bold"),
                bar(rate, bar_width, "$primary", mark=expected),
                f"  {rate:.2f}{against}",
            )
        )
    lines.append(
        Content.styled(
            fit(f"┃ golden: increments of {acceptance().source} · {data.basis}", width), "$secondary"
        )
    )
    return lines


def _verdict_lines(view: View, width: int) -> list[Content | str]:
    data = view.load.acceptance
    if data is None:
        return [Content.styled("nothing to judge", "$secondary")]
    word, style, why = _verdict(data, view.golden)
    load = view.load
    drafted = load.totals.get("draft_tokens")
    accepted = load.totals.get("accepted_tokens")
    share = accepted / drafted if accepted is not None and drafted else None
    rate = load.recent["drafts"] / load.window_s if load.window_s and "drafts" in load.recent else None
    return [
        Content.assemble((word, f"bold {style}")),
        *(Content.styled(part, "$secondary") for part in _wrap(why, width)),
        "",
        Content.assemble(("K          ", "bold"), f"{data.draft_tokens} draft tokens a step"),
        Content.assemble(
            ("drafts     ", "bold"), f"{count(data.drafts)} {data.basis}, {number(rate)} a second"
        ),
        Content.assemble(("accepted   ", "bold"), f"{percent(share)} of draft tokens since start"),
    ]


def _verdict(data: Acceptance, golden: Golden | None) -> tuple[str, str, str]:
    if data.looks_synthetic:
        return (
            "SYNTHETIC suspected",
            "$text-error",
            "a step function: no real drafter accepts like this; text is meaningless",
        )
    if data.length <= COLLAPSED_LENGTH:
        return (
            "drafter useless",
            "$text-error",
            "almost nothing is accepted: each step pays for drafts it throws away",
        )
    if golden is None:
        return "no golden curve", "$secondary", "published acceptance is for DSpark on Kimi K3, K=1 to 8"
    if data.length > golden.length * ARTEFACT_FACTOR:
        return (
            "above golden",
            "$text-warning",
            "repeated or random prompts do this; not comparable with published figures",
        )
    if data.length < 0.6 * golden.length:
        return (
            "below golden",
            "$text-warning",
            "normal for agentic or creative text (published 1.16–2.61), low for code",
        )
    return "near golden", "$text-success", "the drafter works as published for code"


def _wrap(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(10, width))
