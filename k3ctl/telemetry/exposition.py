"""A view as Prometheus metrics: figures that only k3ctl has. What is unknown has no series, never a zero.

vLLM's own page stays the source of everything that it counts itself (latency histograms, request outcomes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from k3ctl.server.witness import Counts
from k3ctl.telemetry.view import GpuView, NodeView, View

MHZ = 1e6
SEVERITIES = ("fail", "warn", "info")


@dataclass(frozen=True)
class Series:
    """One metric: its kind, its meaning and the names of its labels."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


SERIES: Mapping[str, Series] = {
    "k3ctl_server_up": Series("gauge", "1 while the server's metrics page is read, else 0", ("server",)),
    "k3ctl_output_tokens_per_second": Series("gauge", "Output tokens per second over the last 10 s"),
    "k3ctl_prompt_tokens_per_second": Series("gauge", "Prompt tokens per second over the last 10 s"),
    "k3ctl_requests_running": Series("gauge", "Requests in the batch"),
    "k3ctl_requests_waiting": Series("gauge", "Requests in the queue"),
    "k3ctl_kv_cache_usage_ratio": Series("gauge", "Share of the KV cache's blocks in use, 0 to 1"),
    "k3ctl_path_specialized_ratio": Series(
        "gauge", "Share of decode steps on the specialized path, last minute"
    ),
    "k3ctl_path_steps_total": Series(
        "counter", "Engine steps since the engine's start", ("path", "kind", "reason")
    ),
    "k3ctl_path_ranks_disagree": Series("gauge", "1 when ranks count different numbers of steps"),
    "k3ctl_acceptance_length": Series(
        "gauge", "Tokens per verify step, the bonus token included, last minute"
    ),
    "k3ctl_acceptance_ratio": Series(
        "gauge", "Accepted share of drafts by position, last minute", ("position",)
    ),
    "k3ctl_acceptance_golden_length": Series("gauge", "Acceptance length of the golden curve for this K"),
    "k3ctl_alert": Series("gauge", "1 for every alert that fires now", ("rule", "severity", "where")),
    "k3ctl_alerts": Series("gauge", "Alerts that fire now, by severity", ("severity",)),
    "k3ctl_node_gpus": Series(
        "gauge", "GPUs that the node's driver lists; 0 when it cannot be read", ("node",)
    ),
    "k3ctl_node_age_seconds": Series("gauge", "Seconds since the node's GPUs were read", ("node",)),
    "k3ctl_gpu_lost": Series("gauge", "1 when the driver cannot open the GPU any more", ("node", "gpu")),
    "k3ctl_gpu_memory_used_bytes": Series("gauge", "Memory in use", ("node", "gpu")),
    "k3ctl_gpu_memory_total_bytes": Series("gauge", "Memory of the GPU", ("node", "gpu")),
    "k3ctl_gpu_power_watts": Series("gauge", "Power draw", ("node", "gpu")),
    "k3ctl_gpu_power_limit_watts": Series("gauge", "Power limit", ("node", "gpu")),
    "k3ctl_gpu_sm_clock_hertz": Series("gauge", "SM clock", ("node", "gpu")),
    "k3ctl_gpu_temperature_celsius": Series("gauge", "Temperature of the GPU", ("node", "gpu")),
    "k3ctl_gpu_utilization_ratio": Series(
        "gauge", "Share of time with a kernel running, 0 to 1", ("node", "gpu")
    ),
    "k3ctl_gpu_throttled": Series(
        "gauge", "1 while clocks are lowered for this reason", ("node", "gpu", "reason")
    ),
    "k3ctl_gpu_nvlink_links": Series("gauge", "NVLink links of the GPU", ("node", "gpu")),
    "k3ctl_gpu_nvlink_links_up": Series("gauge", "NVLink links that are up", ("node", "gpu")),
    "k3ctl_gpu_nvlink_transmit_bytes_per_second": Series("gauge", "Sent over NVLink", ("node", "gpu")),
    "k3ctl_gpu_nvlink_receive_bytes_per_second": Series("gauge", "Received over NVLink", ("node", "gpu")),
    "k3ctl_gpu_nvlink_errors_total": Series(
        "counter", "NVLink errors since the driver loaded", ("node", "gpu")
    ),
    "k3ctl_gpu_ecc_uncorrected_total": Series(
        "counter", "Uncorrectable memory errors since the driver loaded", ("node", "gpu")
    ),
}
"""Every series by name."""


@dataclass(frozen=True)
class Sample:
    """One value of a series; ``labels`` in the order of the series' label names."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def samples(view: View) -> Iterator[Sample]:
    """All values of a view that are known."""
    for server in view.servers:
        yield Sample("k3ctl_server_up", float(server.state == "up"), (server.source,))
    yield from _known(
        {
            "k3ctl_output_tokens_per_second": view.load.output_tok_s,
            "k3ctl_prompt_tokens_per_second": view.load.prompt_tok_s,
            "k3ctl_requests_running": view.load.running,
            "k3ctl_requests_waiting": view.load.waiting,
            "k3ctl_kv_cache_usage_ratio": view.load.kv_usage,
            "k3ctl_path_specialized_ratio": view.path.engagement if view.path.basis else None,
            "k3ctl_acceptance_golden_length": view.golden.length if view.golden else None,
        }
    )
    if view.path.basis:
        yield Sample("k3ctl_path_ranks_disagree", float(view.path.ranks_disagree))
        yield from _steps(view.path.total)
    if view.load.acceptance:
        yield Sample("k3ctl_acceptance_length", view.load.acceptance.length)
        for position, rate in enumerate(view.load.acceptance.rates):
            yield Sample("k3ctl_acceptance_ratio", rate, (str(position),))
    for severity in SEVERITIES:
        fires = sum(alert.severity == severity for alert in view.alerts)
        yield Sample("k3ctl_alerts", float(fires), (severity,))
    firing = dict.fromkeys((alert.rule, alert.severity, alert.where) for alert in view.alerts)
    yield from (Sample("k3ctl_alert", 1.0, labels) for labels in firing)
    for node in view.nodes:
        yield from _node(node)


def _known(values: Mapping[str, float | None], labels: Sequence[str] = ()) -> Iterator[Sample]:
    for name, value in values.items():
        if value is not None:
            yield Sample(name, float(value), tuple(labels))


def _steps(counts: Counts) -> Iterator[Sample]:
    """Summed over modes and slots: those are `/k3/metrics`' own labels."""
    sums: dict[tuple[str, str, str], float] = {}
    for key, count in counts.items():
        labels = (key.path, key.kind, key.reason)
        sums[labels] = sums.get(labels, 0.0) + count.steps
    for labels, steps in sums.items():
        yield Sample("k3ctl_path_steps_total", steps, labels)


def _node(node: NodeView) -> Iterator[Sample]:
    yield Sample("k3ctl_node_gpus", 0.0 if node.failure else float(len(node.gpus)), (node.source,))
    yield from _known({"k3ctl_node_age_seconds": node.age_s}, (node.source,))
    if node.failure:
        return  # the last values are old: a gap says so
    for gpu in node.gpus:
        labels = (node.source, str(gpu.sample.index))
        yield Sample("k3ctl_gpu_lost", float(bool(gpu.sample.lost)), labels)
        if not gpu.sample.lost:
            yield from _known(_gpu(gpu), labels)
            for reason in gpu.sample.throttle:
                yield Sample("k3ctl_gpu_throttled", 1.0, (*labels, reason))


def _gpu(gpu: GpuView) -> dict[str, float | None]:
    read = gpu.sample
    return {
        "k3ctl_gpu_memory_used_bytes": read.memory_used_bytes,
        "k3ctl_gpu_memory_total_bytes": read.memory_total_bytes,
        "k3ctl_gpu_power_watts": read.power_w,
        "k3ctl_gpu_power_limit_watts": read.power_limit_w,
        "k3ctl_gpu_sm_clock_hertz": None if read.sm_mhz is None else read.sm_mhz * MHZ,
        "k3ctl_gpu_temperature_celsius": read.temperature_c,
        "k3ctl_gpu_utilization_ratio": (
            None if read.utilization_percent is None else read.utilization_percent / 100
        ),
        "k3ctl_gpu_nvlink_links": read.links,
        "k3ctl_gpu_nvlink_links_up": read.links_up,
        "k3ctl_gpu_nvlink_transmit_bytes_per_second": gpu.nvlink_tx_bytes_s,
        "k3ctl_gpu_nvlink_receive_bytes_per_second": gpu.nvlink_rx_bytes_s,
        "k3ctl_gpu_nvlink_errors_total": read.nvlink_errors,
        "k3ctl_gpu_ecc_uncorrected_total": read.ecc_uncorrected,
    }
