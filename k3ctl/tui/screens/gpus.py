"""GPUs: what the driver says about each one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from k3ctl.telemetry import group
from k3ctl.telemetry.text import UNKNOWN, count, duration, gigabytes
from k3ctl.telemetry.view import GpuView, View
from k3ctl.tui.screens.base import MonitorScreen
from k3ctl.tui.widgets.bars import bar
from k3ctl.tui.widgets.line import Line
from k3ctl.tui.widgets.panel import Panel
from k3ctl.tui.widgets.table import Table

Share = tuple[float | None, float | None]
"""A value and its limit."""


def _memory(gpu: GpuView) -> str:
    used, total = gpu.sample.memory_used_bytes, gpu.sample.memory_total_bytes
    return UNKNOWN if used is None or not total else f"{used / 2**30:.0f}/{total / 2**30:.0f} GiB"


def _links(gpu: GpuView) -> str:
    return f"{count(gpu.sample.links_up)}/{count(gpu.sample.links)}" if gpu.sample.links else UNKNOWN


def _ecc(gpu: GpuView) -> str:
    remap = f", remap {gpu.sample.remap}" if gpu.sample.remap else ""
    return count(gpu.sample.ecc_uncorrected) + remap


COLUMNS: tuple[tuple[str, int, Callable[[GpuView], str]], ...] = (
    ("GPU", 0, lambda gpu: f"{gpu.sample.index}"),
    ("memory", 0, _memory),
    ("power W", 0, lambda gpu: f"{count(gpu.sample.power_w)}/{count(gpu.sample.power_limit_w)}"),
    ("SM MHz", 0, lambda gpu: count(gpu.sample.sm_mhz)),
    ("°C", 0, lambda gpu: count(gpu.sample.temperature_c)),
    ("util %", 100, lambda gpu: count(gpu.sample.utilization_percent)),
    ("throttle", 0, lambda gpu: ", ".join(gpu.sample.throttle) or "none"),
    ("links", 0, _links),
    ("sent GB/s", 110, lambda gpu: gigabytes(gpu.nvlink_tx_bytes_s)),
    ("recv GB/s", 110, lambda gpu: gigabytes(gpu.nvlink_rx_bytes_s)),
    ("errors", 100, lambda gpu: count(gpu.sample.nvlink_errors)),
    ("ECC", 0, _ecc),
    ("fabric", 90, lambda gpu: gpu.sample.fabric or UNKNOWN),
)
"""Title, least screen width, cell."""

LEFT = ("throttle", "fabric")


class GpusScreen(MonitorScreen):
    """One row per GPU of every node, and the quantities that have a limit as bars."""

    MODE = "gpus"

    def body(self) -> ComposeResult:
        """A note, the table, bars."""
        yield Line(id="gpu-note")
        yield Table("GPUs", id="gpu-table")
        with Horizontal(id="gpu-bars"):
            yield Panel("memory", id="gpu-memory")
            yield Panel("power", id="gpu-power")
            yield Panel("NVLink sent", id="gpu-nvlink")

    def show_body(self, view: View) -> None:
        """Redraw."""
        self.query_one("#gpu-note", Line).put(_note(view))
        gpus = [(node.source, gpu) for node, gpu in group.worst_gpus_first(view.nodes)]
        several = len(view.nodes) > 1
        columns = [column for column in COLUMNS if self.size.width >= column[1]]
        cells = [cell for _, _, cell in columns]
        rows = {
            f"{source}/{gpu.sample.index}": [source] * several + _cells(gpu, cells) for source, gpu in gpus
        }
        table = self.query_one("#gpu-table", Table)
        table.display = bool(gpus)
        table.show(["node"] * several + [title for title, _, _ in columns], rows, LEFT)
        self.query_one("#gpu-bars").display = bool(gpus) and self.size.height >= 32
        present = [(source, gpu) for source, gpu in gpus if not gpu.sample.lost]
        names = [
            f"{source} {gpu.sample.index}" if several else f"{gpu.sample.index:>2}" for source, gpu in present
        ]
        samples = [gpu.sample for _, gpu in present]
        self._bars("#gpu-memory", names, [(s.memory_used_bytes, s.memory_total_bytes) for s in samples])
        self._bars("#gpu-power", names, [(s.power_w, s.power_limit_w) for s in samples])
        sent = [(gpu.nvlink_tx_bytes_s, gpu.sample.nvlink_limit_bytes_s) for _, gpu in present]
        self._bars("#gpu-nvlink", names, sent)

    def _bars(self, panel_id: str, names: Sequence[str], shares: Sequence[Share]) -> None:
        panel = self.query_one(panel_id, Panel)
        lines: list[Content | str] = []
        width = max(map(len, names), default=0)
        for name, (value, limit) in zip(names, shares, strict=True):
            head = (f"{name:{width}} ", "bold")
            if value is None or not limit:
                lines.append(Content.assemble(head, UNKNOWN))
                continue
            cells = bar(value / limit, panel.inner_width - width - 7)
            lines.append(Content.assemble(head, cells, f" {value / limit:4.0%}"))
        panel.show(*lines)


def _cells(gpu: GpuView, cells: Sequence[Callable[[GpuView], str]]) -> list[str]:
    if gpu.sample.lost:
        return [f"{gpu.sample.index}", f"LOST: {gpu.sample.lost}", *[UNKNOWN] * (len(cells) - 2)]
    return [cell(gpu) for cell in cells]


def _note(view: View) -> str:
    if not view.nodes:
        return view.failures.get("gpus", "GPUs are not being read")
    parts = [domains] if len(view.nodes) > 1 and (domains := group.domains(view.nodes)) else []
    for node in group.worst_nodes_first(view.nodes):
        if not node.gpus:
            parts.append(f"{node.source}: {node.failure or 'no GPU'}")
            continue
        names = " + ".join(sorted({gpu.sample.name for gpu in node.gpus if gpu.sample.name}))
        late = f", last read {duration(node.age_s)} ago" if (node.age_s or 0) > 10 else ""
        failure = f", now failing: {node.failure}" if node.failure else ""
        parts.append(f"{node.source}: {len(node.gpus)} × {names}{late}{failure}")
    return "   ".join(parts)
