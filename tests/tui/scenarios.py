"""Synthetic deployments as event streams: GB300 TP16 with DSpark K=7, five minutes, one page a second.

The shapes are those of vLLM 0.33's metrics and the witness; the numbers are invented and follow from a few
parameters, without randomness, so that a picture changes only when the code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from k3ctl.deployment import Deployment
from k3ctl.server.prometheus import Page, Series
from k3ctl.server.witness import WorkerPage
from k3ctl.telemetry.events import (
    BenchReported,
    Event,
    FeedFailed,
    GpusRead,
    IncidentFound,
    MetricsRead,
    StageChanged,
    WitnessRead,
)
from k3ctl.telemetry.gpus import GpuFinding, GpuSample

START = 1_795_960_800.0
"""2026-11-29 14:00:00 UTC."""

SECONDS = 300
URL = "http://127.0.0.1:8000"
DEPLOYMENT = Deployment(
    profile="gb300-tp16", gpu="GB300", tensor_parallel_size=16, num_speculative_tokens=7, speculator="dspark"
)
GOLDEN = (0.84, 0.66, 0.50, 0.36, 0.24, 0.15, 0.09)
TTFT_EDGES = (0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, math.inf)
ITL_EDGES = (0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.05, 0.1, math.inf)


@dataclass
class Server:
    """A server that counts."""

    series: dict[Series, float] = field(default_factory=dict)

    def add(self, name: str, value: float, **labels: str) -> None:
        key = self._key(name, labels)
        self.series[key] = self.series.get(key, 0.0) + value

    def set(self, name: str, value: float, **labels: str) -> None:
        self.series[self._key(name, labels)] = value

    def observe(self, name: str, edges: tuple[float, ...], value: float, times: float) -> None:
        for edge in edges:
            label = "+Inf" if math.isinf(edge) else f"{edge}"
            self.add(f"vllm:{name}_bucket", times if value <= edge else 0.0, le=label)
        self.add(f"vllm:{name}_sum", value * times)
        self.add(f"vllm:{name}_count", times)

    def page(self) -> Page:
        return Page(dict(self.series))

    @staticmethod
    def _key(name: str, labels: dict[str, str]) -> Series:
        if name.startswith("vllm:"):
            labels = {"engine": "0", "model_name": "moonshotai/Kimi-K3", **labels}
        return name, tuple(sorted(labels.items()))


@dataclass
class Second:
    """One second of serving."""

    running: int = 6
    waiting: int = 0
    steps: float = 104.0
    arrivals: float = 2.4
    rates: tuple[float, ...] = GOLDEN
    specialized: float = 0.975
    reason: str = "prefill-in-batch"
    ttft_s: float = 0.34
    kv_usage: float = 0.31


def serve_second(server: Server, now: Second) -> None:
    drafts = now.steps * now.running
    accepted = [drafts * rate for rate in now.rates]
    server.set("vllm:num_requests_running", now.running)
    server.set("vllm:num_requests_waiting", now.waiting)
    server.set("vllm:num_requests_waiting_by_reason", now.waiting, reason="capacity")
    server.set("vllm:kv_cache_usage_perc", now.kv_usage)
    server.add("vllm:generation_tokens_total", round(drafts + sum(accepted)))
    server.add("vllm:prompt_tokens_total", round(now.arrivals * 8000))
    server.add("vllm:prefix_cache_queries_total", round(now.arrivals * 8000))
    server.add("vllm:prefix_cache_hits_total", round(now.arrivals * 8000 * 0.62))
    server.add("vllm:num_preemptions_total", 0)
    server.add("vllm:request_success_total", now.arrivals, finished_reason="stop")
    server.add("vllm:spec_decode_num_drafts_total", drafts)
    server.add("vllm:spec_decode_num_draft_tokens_total", drafts * 7)
    server.add("vllm:spec_decode_num_accepted_tokens_total", sum(accepted))
    for position, count in enumerate(accepted):
        server.add("vllm:spec_decode_num_accepted_tokens_per_pos_total", count, position=f"{position}")
    step_s = 0.0086 if now.steps else 0.0
    server.observe("iteration_tokens_total", (8.0, 64.0, math.inf), now.running * 4, now.steps)
    server.observe("inter_token_latency_seconds", ITL_EDGES, step_s, drafts * 0.9)
    server.observe("inter_token_latency_seconds", ITL_EDGES, step_s * 2.1, drafts * 0.1)
    server.observe("time_to_first_token_seconds", TTFT_EDGES, now.ttft_s, now.arrivals * 0.8)
    server.observe("time_to_first_token_seconds", TTFT_EDGES, now.ttft_s * 2.4, now.arrivals * 0.2)
    server.observe("request_queue_time_seconds", TTFT_EDGES, now.ttft_s * 0.1, now.arrivals)
    server.observe("e2e_request_latency_seconds", TTFT_EDGES, 2.9, now.arrivals)
    info = {"kv_cache_max_concurrency": "18.45", "block_size": "1536", "mamba_ssm_cache_dtype": "float32"}
    server.set("vllm:cache_config_info", 1.0, **info)


def witness_second(server: Server, now: Second) -> None:
    fast = now.steps * now.specialized
    rows = [("specialized", "decode", "full", "", fast)]
    kind = "mixed" if now.reason == "prefill-in-batch" else "decode"
    mode = "piecewise" if kind == "mixed" else "full"
    rows.append(("standard", kind, mode, now.reason, now.steps - fast))
    for rank in ("0", "1"):
        for path, kind_, mode_, reason, steps in rows:
            labels = {"rank": rank, "path": path, "kind": kind_, "mode": mode_, "reason": reason}
            server.add("k3_steps_total", round(steps), **labels)
            server.add("k3_rows_total", round(steps) * now.running, **labels)
            server.add("k3_tokens_total", round(steps) * now.running * 8, **labels)
        info = {"vllm": "0.33.0", "runtime": "0.1.0", "known_build": "true", "platform": "cuda"}
        server.set("k3_witness_info", 1.0, rank=rank, decode_backend="latency_specialized", **info)


def wave(second: int, period: float, depth: float) -> float:
    return 1.0 + depth * math.sin(2 * math.pi * second / period)


def healthy_second(second: int) -> Second:
    rates = tuple(min(1.0, rate * wave(second, 83, 0.04)) for rate in GOLDEN)
    return Second(
        running=round(6 * wave(second, 120, 0.3)),
        steps=104 * wave(second, 47, 0.03),
        arrivals=2.4 * wave(second, 60, 0.35),
        rates=rates,
        specialized=0.975 - 0.02 * (wave(second, 60, 1.0) - 1.0),
        kv_usage=0.31 * wave(second, 150, 0.2),
    )


def gpus(second: int, **special: object) -> GpusRead:
    samples = []
    for index in range(4):
        fields: dict[str, object] = {
            "name": "NVIDIA GB300",
            "memory_used_bytes": 268_400_000_000 + index * 300_000_000,
            "memory_total_bytes": 298_013_687_808,
            "power_w": round(905 * wave(second + index * 7, 40, 0.05)),
            "power_limit_w": 1400.0,
            "sm_mhz": 1920,
            "sm_max_mhz": 2032,
            "temperature_c": 58 + index,
            "utilization_percent": 97,
            "links_up": 18,
            "links": 18,
            "nvlink_tx_bytes": int((second + 1) * 61e9 * (1 + 0.02 * index)),
            "nvlink_rx_bytes": int((second + 1) * 60e9 * (1 + 0.02 * index)),
            "nvlink_errors": 0,
            "nvlink_limit_bytes_s": 18 * 53.125e9,
            "ecc_uncorrected": 0,
            "fabric_state": 3,
            "fabric_status": 0,
            "fabric_health": 1,
        }
        if index == 2:
            fields |= special
        samples.append(GpuSample(index, **fields))  # type: ignore[arg-type]
    return GpusRead(START + second, "tray00", tuple(samples))


def start_up() -> Iterator[Event]:
    stages = [
        ("configure", "TP16, K=7"),
        ("weights", "96 shards"),
        ("compile", "1 graph"),
        ("capture", "67 graphs"),
    ]
    for number, (stage, detail) in enumerate(stages):
        yield StageChanged(START - 40 + 10 * number, "run", stage, "done", 1, 1, detail)
    yield StageChanged(START, "run", "ready", "done", 1, 1, URL)


def bench() -> Iterator[Event]:
    published = {1: [183.3], 4: [381.0, 417.0], 16: [725.0]}
    yield _bench(0, kind="run_start", strategies=["concurrent"] * 3)
    for number, (streams, rate, ttft, itl) in enumerate(((1, 181.7, 381.0, 5.1), (4, 402.3, 655.0, 9.2))):
        reference = {"label": "vLLM blog, B300 TP8 8K/1K", "output_tok_s": published[streams]}
        begin = number * 150
        yield _bench(begin, kind="bench_start", strategy=f"concurrent@{streams}", reference=reference)
        for step in range(1, 15):
            figures = {"otps": rate, "ttft_ms": ttft, "itl_ms": itl, "lat_s": 1000 * itl / 1e3 + ttft / 1e3}
            counts = {"ok": step * (2 if streams == 1 else 4), "err": 0, "processing": streams}
            yield _bench(
                begin + step * 10, kind="tick", phase="active", remaining=1 - step / 15, **figures, **counts
            )
        if streams == 1:
            totals = {"successful": 29, "errored": 0}
            yield _bench(begin + 149, kind="bench_done", totals=totals, otps=rate)


def _bench(second: float, **data: object) -> BenchReported:
    return BenchReported(START + second, "bench", {"ts": START + second, **data})


def witness_table(refused: tuple[str, ...] = ()) -> WitnessRead:
    page = WorkerPage(0, "0.1.0", "0.33.0", True, "cuda", "latency_specialized", 64, 8, refused, {})
    return WitnessRead(START + 1, URL, (page,))


def stream(second_of: Callable[[int], Second | None], *, gpu: Callable[[int], Event] = gpus) -> list[Event]:
    """Five minutes; None as a second's load means that the server does not answer."""
    server = Server()
    events: list[Event] = [*start_up(), witness_table(), *bench()]
    for second in range(SECONDS + 1):
        now = second_of(second)
        if now is None:
            server = Server()
            events.append(FeedFailed(START + second, URL, "metrics", "connection refused"))
        else:
            serve_second(server, now)
            witness_second(server, now)
            events.append(MetricsRead(START + second, URL, server.page()))
        if second % 2 == 0:
            events.append(gpu(second))
    return sorted(events, key=lambda event: event.t)


def healthy() -> list[Event]:
    return stream(healthy_second)


def stalled() -> list[Event]:
    def second_of(second: int) -> Second:
        if second < 255:
            return healthy_second(second)
        return Second(running=8, waiting=12, steps=0.0, arrivals=0.0, kv_usage=0.44)

    events = stream(second_of)
    incident = IncidentFound(
        START + 290,
        "run",
        "stalled",
        "fail",
        "no token for 35 s, all ranks in a collective",
        "py-spy dump",
    )
    return sorted([*events, incident], key=lambda event: event.t)


def not_engaged() -> list[Event]:
    def second_of(second: int) -> Second:
        now = healthy_second(second)
        now.running, now.waiting = 14, 3
        now.steps, now.specialized, now.reason = 58.0, 0.02, "rows-over-limit"
        return now

    return stream(second_of)


def acceptance_collapse() -> list[Event]:
    def second_of(second: int) -> Second:
        now = healthy_second(second)
        now.rates = tuple(rate * max(0.0, 1.0 - second / 200) for rate in GOLDEN)
        return now

    return stream(second_of)


def restarting() -> list[Event]:
    def second_of(second: int) -> Second | None:
        return healthy_second(second) if second < 200 or 240 <= second < 285 else None

    return stream(second_of)


def no_gpu() -> list[Event]:
    reason = "no NVIDIA driver on this host (LibraryNotFound)"
    return stream(healthy_second, gpu=lambda second: FeedFailed(START + second, "laptop", "gpus", reason))


def throttled() -> list[Event]:
    hot = GpuFinding(
        "clock.hw-thermal-slowdown",
        "fail",
        "Hardware slows the GPU down: temperature",
        "clock event reasons 0x40, 94 °C",
        "check airflow or coolant and the inlet temperature of this slot",
        "GPU 2",
    )

    def reading(second: int) -> GpusRead:
        special = {"sm_mhz": 1120, "temperature_c": 94, "power_w": 612.0, "throttle": ("HW thermal",)}
        return replace(gpus(second, **special), findings=(hot,))

    return stream(healthy_second, gpu=reading)


def four_trays() -> list[Event]:
    """A rack of four: a hot GPU on the third tray, the fourth out of reach."""
    hot = next(event for event in reversed(throttled()) if isinstance(event, GpusRead))
    trays = []
    for number in range(3):
        for second in (SECONDS - 2, SECONDS):
            reading = gpus(second)
            if number == 2:
                samples = (*reading.gpus[:2], hot.gpus[2], *reading.gpus[3:])
                reading = replace(reading, gpus=samples, findings=hot.findings)
            samples = tuple(replace(gpu, nvlink_domain=f"{RACK}/1") for gpu in reading.gpus)
            trays.append(replace(reading, source=f"tray{number}", gpus=samples))
    gone = FeedFailed(
        START + SECONDS, "tray3", "gpus", "ssh: connect to host tray3 port 22: No route to host"
    )
    without = [event for event in healthy() if not isinstance(event, GpusRead)]
    return sorted([*without, *trays, gone], key=lambda event: event.t)


RACK = "8f3c0000-0000-0000-0000-000000000001"
SCENARIOS: dict[str, Callable[[], list[Event]]] = {
    "healthy": healthy,
    "stalled": stalled,
    "not-engaged": not_engaged,
    "acceptance-collapse": acceptance_collapse,
    "restarting": restarting,
    "no-gpu": no_gpu,
    "throttled": throttled,
    "four-trays": four_trays,
}
END = START + SECONDS
