"""Overview: is it serving, how fast, and what holds it back."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from k3ctl.server.witness import REASONS, by_reason
from k3ctl.telemetry.measures import Latency
from k3ctl.telemetry.text import UNKNOWN, bucket, count, number, percent, seconds
from k3ctl.telemetry.view import Load, PathView, ServerView, View
from k3ctl.tui.screens.base import MonitorScreen
from k3ctl.tui.widgets.bars import bar
from k3ctl.tui.widgets.chart import TimeChart
from k3ctl.tui.widgets.panel import Panel, Tile

SEQUENCES = ("full sequences", "sequences", "seqs")
"""What the cache holds, of the model's full length; the longest name that fits."""

_LATENCIES = (("TTFT", "ttft"), ("ITL", "itl"), ("queue", "queue"), ("e2e", "e2e"))


class OverviewScreen(MonitorScreen):
    """Throughput, requests, latency, cache."""

    MODE = "overview"

    def body(self) -> ComposeResult:
        """Tiles, plots, tables."""
        with Horizontal(id="tiles"):
            yield Tile("output", id="output")
            yield Tile("prompt", id="prompt")
            yield Tile("requests", id="requests")
            yield Tile("KV cache", id="kv")
        with Horizontal(id="plots"):
            yield TimeChart("output tok/s", id="output-plot")
            yield TimeChart("prompt tok/s", id="prompt-plot")
        with Horizontal(id="tables"):
            yield Panel("latency", id="latency")
            yield Panel("health", id="health")

    def show_body(self, view: View) -> None:
        """Redraw."""
        load = view.load
        self._tiles(load)
        self.query_one("#output-plot", TimeChart).show(
            [(p.t, p.output_tok_s) for p in view.history], view.now
        )
        self.query_one("#prompt-plot", TimeChart).show(
            [(p.t, p.prompt_tok_s) for p in view.history], view.now
        )
        latency = self.query_one("#latency", Panel)
        latency.show(*_latency_lines(load, latency.inner_width))
        health = self.query_one("#health", Panel)
        health.show(*_health_lines(view, health.inner_width))

    def _tiles(self, load: Load) -> None:
        totals = load.totals
        output = self.query_one("#output", Tile)
        output.show(
            number(load.output_tok_s), "tok/s", _muted(f"{count(totals.get('generation_tokens'))} tokens")
        )
        prompt = self.query_one("#prompt", Tile)
        prompt.show(
            number(load.prompt_tok_s), "tok/s", _muted(f"{count(totals.get('prompt_tokens'))} tokens")
        )
        reasons = ", ".join(f"{reason} {count(n)}" for reason, n in load.waiting_by_reason.items() if n)
        waiting = Content.assemble(
            f"{count(load.waiting)} waiting", (f": {reasons}" if reasons else "", "$text-warning")
        )
        self.query_one("#requests", Tile).show(count(load.running), "running", waiting)
        kv = self.query_one("#kv", Tile)
        usage = UNKNOWN if load.kv_usage is None else f"{load.kv_usage * 100:.1f}"
        lines = [
            bar(load.kv_usage or 0.0, kv.inner_width, "$error" if (load.kv_usage or 0) > 0.95 else "$primary")
        ]
        if load.kv_sequences and load.kv_usage is not None:
            held = load.kv_usage * load.kv_sequences
            text = f"{held:.1f} of {load.kv_sequences:.1f}"
            unit = next((u for u in SEQUENCES if len(text) + len(u) < kv.inner_width), SEQUENCES[-1])
            lines.append(_muted(f"{text} {unit}"))
        kv.show(usage, "% full", *lines)


def _muted(text: str) -> Content:
    return Content.styled(text, "$secondary")


def _latency_lines(load: Load, width: int) -> list[Content | str]:
    """A row per distribution: the exact mean, and the buckets that hold the quantiles."""
    shown = ("p50", "p90", "p99") if width >= 54 else ("p50", "p99")
    cell = max(12, min(16, (width - 16) // len(shown)))
    head = f"{'':<6}{'mean':>9} " + "".join(f"{name:>{cell}}" for name in shown)
    lines: list[Content | str] = [Content.styled(head, "bold")]
    basis = ""
    for title, name in _LATENCIES:
        data: Latency | None = getattr(load, name)
        if data is None:
            lines.append(_muted(f"{title:<6}{UNKNOWN:>9}"))
            continue
        cells = "".join(f"{bucket(getattr(data, q)):>{cell}}" for q in shown)
        lines.append(Content.assemble((f"{title:<6}", "bold"), f"{seconds(data.mean_s):>9} {cells}"))
        basis = basis or data.basis
    if basis:
        lines.append(_muted(f"{basis}; mean exact, quantiles as buckets"))
    if load.itl and load.itl.p99.low <= 0:
        hint = "ITL lies in the first bucket: serve with --custom-histogram-buckets"
        lines.append(Content.styled(hint, "$text-warning"))
    return lines


def _health_lines(view: View, width: int) -> list[Content | str]:
    load, path = view.load, view.path
    wide = width >= 40
    window = f" in {load.window_s:.0f} s" if load.window_s else ""
    failed = load.finished_recent.get("error", 0.0)
    done = sum(load.finished_recent.values())
    rows = [
        ("path", _path_line(path, wide) if path.basis else f"unknown: {path.absence}"),
        ("accepted", _acceptance_line(view, wide)),
        ("prefix hit", percent(load.prefix_hit_share) + (" of prompt tokens" if wide else "")),
        ("preempted", f"{count(load.recent.get('preemptions'))}{window}"),
        ("finished", f"{count(done)}{window if wide else ''}, {count(failed)} failed" if window else UNKNOWN),
    ]
    rows += [_engine_row(server) for server in view.servers if len(server.engines) > 1]
    return [Content.assemble((f"{name:<11}", "bold"), value) for name, value in rows]


def _path_line(path: PathView, wide: bool) -> str:
    reasons = by_reason(path.counts)
    why = f", rest {REASONS.get(reasons[0][0], reasons[0][0])}" if reasons and wide else ""
    return f"{percent(path.engagement)} specialized{why}"


def _acceptance_line(view: View, wide: bool) -> str:
    data = view.load.acceptance
    if data is None:
        return "no speculation" if view.load.totals else UNKNOWN
    against = f", golden {view.golden.length:.2f}" if view.golden and wide else ""
    return f"{data.length:.2f} tokens a step{against}"


def _engine_row(server: ServerView) -> tuple[str, str]:
    loads = "  ".join(f"{engine.label}: {count(engine.load.running)}" for engine in server.engines)
    return "engines", f"running {loads}"
