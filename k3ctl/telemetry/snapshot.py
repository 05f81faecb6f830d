"""A view as plain text and as JSON, for ``--once``, for pipes and for scripts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from k3ctl.server.witness import REASONS, by_reason, decode_steps, own_slots
from k3ctl.telemetry import gpus, group
from k3ctl.telemetry.histogram import Quantile
from k3ctl.telemetry.measures import Latency
from k3ctl.telemetry.text import UNKNOWN, bucket, count, duration, number, percent, seconds, size
from k3ctl.telemetry.view import Load, NodeView, PathView, ServerView, View

SCHEMA = "k3ctl.monitor/1"
LABEL = {"fail": "FAIL", "warn": "WARN", "info": "info"}


def line(view: View) -> str:
    """One line for an interval: what changes, with units."""
    load = view.load
    parts = [
        time.strftime("%H:%M:%S", time.localtime(view.now)),
        f"out {number(load.output_tok_s)} tok/s",
        f"prompt {number(load.prompt_tok_s)} tok/s",
        f"running {count(load.running)}",
        f"waiting {count(load.waiting)}",
        f"TTFT p50 {_p50(load.ttft)}",
        f"ITL p50 {_p50(load.itl)}",
        f"KV {percent(load.kv_usage)}",
    ]
    if load.acceptance:
        parts.append(f"AL {load.acceptance.length:.2f}")
    if view.path.basis:
        parts.append(f"specialized {percent(view.path.engagement)}")
    parts += [f"{server.source} {server.state}" for server in view.servers if server.state != "up"]
    parts += [f"{LABEL[alert.severity]} {alert.rule}" for alert in view.alerts if alert.severity != "info"]
    return " · ".join(parts)


def lines(view: View) -> list[str]:
    """A whole snapshot for people, without colour."""
    out = [f"k3ctl monitor  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(view.now))}"]
    out += _alert_lines(view)
    for server in view.servers:
        out += ["", *_server_lines(server)]
    out += ["", *_load_lines(view.load)]
    out += ["", *_path_lines(view.path)]
    out += ["", *_speculation_lines(view)]
    for node in group.worst_nodes_first(view.nodes):
        out += ["", *_node_lines(node)]
    if len(view.nodes) > 1 and (domains := group.domains(view.nodes)):
        out += ["", f"nvlink      {domains}"]
    if view.bench:
        out += ["", f"bench       {view.bench.state}"]
        out += [
            f"  {row.strategy}: {row.phase}, {row.completed} ok, {row.errored} errors, "
            f"{number(row.output_tok_s)} tok/s"
            for row in view.bench.rows
        ]
    out += [f"{feed}: {reason}" for feed, reason in view.failures.items()]
    return out


def to_json(view: View) -> dict[str, Any]:
    """The same for scripts: unknown values are null, times in seconds, shares from 0 to 1."""
    return {
        "at": view.now,
        "servers": [_server_json(server) for server in view.servers],
        "load": _load_json(view.load),
        "path": _path_json(view.path),
        "nodes": [_node_json(node) for node in view.nodes],
        "bench": asdict(view.bench) if view.bench else None,
        "stages": [asdict(stage) for stage in view.stages],
        "incidents": [asdict(incident) for incident in view.incidents],
        "absent": dict(view.failures),
        "alerts": [asdict(alert) for alert in view.alerts],
    }


def _alert_lines(view: View) -> list[str]:
    if not view.alerts:
        return ["no alerts"]
    rows = []
    for alert in view.alerts:
        where = f" [{alert.where}]" if alert.where else ""
        rows.append(
            f"{LABEL[alert.severity]} {alert.rule}: {alert.title}{where}: {alert.detail}; {alert.action}"
        )
    return rows


def _server_lines(server: ServerView) -> list[str]:
    detail = server.failure or (f"read {duration(server.age_s)} ago" if server.age_s is not None else "")
    head = f"server      {server.source}  {server.state}  {server.model}  {detail}".rstrip()
    rows = [head, *(f"  page: {problem}" for problem in server.problems)]
    if server.restarts:
        rows.append(f"  restarts seen: {server.restarts}")
    if len(server.engines) > 1:
        for engine in server.engines:
            load = engine.load
            rows.append(
                f"  engine {engine.label}: running {count(load.running)}, waiting {count(load.waiting)}, "
                f"out {number(load.output_tok_s)} tok/s, KV {percent(load.kv_usage)}"
            )
    return rows


def _load_lines(load: Load) -> list[str]:
    reasons = ", ".join(f"{reason} {count(n)}" for reason, n in load.waiting_by_reason.items() if n)
    totals = load.totals
    finished = ", ".join(f"{reason} {count(n)}" for reason, n in load.finished.items() if n)
    kv = percent(load.kv_usage)
    if load.kv_usage is not None and load.kv_sequences:
        kv += f" = {load.kv_usage * load.kv_sequences:.1f} of {load.kv_sequences:.1f} full-length sequences"
    return [
        f"throughput  out {number(load.output_tok_s)} tok/s, prompt {number(load.prompt_tok_s)} tok/s",
        f"tokens      out {count(totals.get('generation_tokens'))}, "
        f"prompt {count(totals.get('prompt_tokens'))} since start",
        f"requests    running {count(load.running)}, waiting {count(load.waiting)}"
        + (f" ({reasons})" if reasons else ""),
        f"finished    {finished or ('none' if load.finished else UNKNOWN)} since start",
        f"TTFT        {_latency(load.ttft)}",
        f"ITL         {_latency(load.itl)}",
        f"KV cache    {kv}",
        f"prefix hits {percent(load.prefix_hit_share)}, preemptions {count(totals.get('preemptions'))}",
    ]


def _latency(latency: Latency | None) -> str:
    if latency is None:
        return UNKNOWN
    return (
        f"mean {seconds(latency.mean_s)}, p50 {bucket(latency.p50)}, p90 {bucket(latency.p90)}, "
        f"p99 {bucket(latency.p99)} ({count(latency.count)} observations, {latency.basis})"
    )


def _p50(latency: Latency | None) -> str:
    return bucket(latency.p50) if latency else UNKNOWN


def _path_lines(path: PathView) -> list[str]:
    if not path.basis:
        return [f"path        unknown: {path.absence}", *(f"  {fact}" for fact in path.excluded)]
    rows = [
        f"path        {percent(path.engagement)} of {count(decode_steps(path.counts))} decode steps "
        f"specialized ({path.basis}), {percent(path.engagement_total)} of "
        f"{count(decode_steps(path.total))} since start"
    ]
    rows += [f"  our kernels: {slots}" for slots in own_slots(path.counts)]
    rows += [
        f"  standard: {REASONS.get(code, code)} ({count(n)} steps)" for code, n in by_reason(path.counts)
    ]
    rows += [f"  refused: {reason}" for reason in path.refused]
    return rows


def _speculation_lines(view: View) -> list[str]:
    load, data = view.load, view.load.acceptance
    if data is None:
        return [f"speculation {'none: no drafts counted' if load.totals else UNKNOWN}"]
    against = f" (golden {view.golden.length:.2f})" if view.golden else ""
    rates = " ".join(f"{rate:.2f}" for rate in data.rates)
    return [
        f"speculation acceptance length {data.length:.2f}{against}, K={data.draft_tokens}, {data.basis}; "
        f"per position {rates}"
    ]


def _node_lines(node: NodeView) -> list[str]:
    if not node.gpus:
        return [f"gpus        {node.source}: {node.failure or 'none'}"]
    rows = [f"gpus        {node.source}"]
    for gpu in node.gpus:
        sample = gpu.sample
        if sample.lost:
            rows.append(f"  {sample.index} LOST: {sample.lost}")
            continue
        throttle = f", throttled: {', '.join(sample.throttle)}" if sample.throttle else ""
        rows.append(
            f"  {sample.index} {sample.name}: {size(sample.memory_used_bytes)}, "
            f"{count(sample.power_w)} W, {count(sample.sm_mhz)} MHz, {count(sample.temperature_c)} °C, "
            f"NVLink {count(sample.links_up)}/{count(sample.links)}{throttle}"
        )
    return rows


def _server_json(server: ServerView) -> dict[str, Any]:
    return {
        "url": server.source,
        "state": server.state,
        "model": server.model,
        "failure": server.failure or None,
        "age_s": server.age_s,
        "restarts": server.restarts,
        "page_problems": list(server.problems),
        "admission_rejections": server.rejections,
        "engines": [
            {"engine": engine.label, "quiet_s": engine.quiet_s, **_load_json(engine.load)}
            for engine in server.engines
        ],
    }


def _load_json(load: Load) -> dict[str, Any]:
    plain = ("running", "waiting", "kv_usage", "kv_sequences", "output_tok_s", "prompt_tok_s", "steps_per_s")
    return {
        **{name: getattr(load, name) for name in plain},
        "waiting_by_reason": dict(load.waiting_by_reason),
        "prefix_hit_share": load.prefix_hit_share,
        **{f"{name}_s": _latency_json(getattr(load, name)) for name in ("ttft", "itl", "e2e", "queue")},
        "acceptance": asdict(load.acceptance) if load.acceptance else None,
        "finished": dict(load.finished),
        "totals": dict(load.totals),
    }


def _latency_json(latency: Latency | None) -> dict[str, Any] | None:
    if latency is None:
        return None
    quantiles = {name: _edges(getattr(latency, name)) for name in ("p50", "p90", "p99")}
    return {"count": latency.count, "mean": latency.mean_s, **quantiles, "basis": latency.basis}


def _edges(quantile: Quantile) -> list[float | None]:
    """The bucket's edges; an open upper edge is null, because JSON has no infinity."""
    return [quantile.low, None if quantile.high == float("inf") else quantile.high]


def _path_json(path: PathView) -> dict[str, Any]:
    return {
        "known": bool(path.basis),
        "absence": path.absence or None,
        "basis": path.basis or None,
        "engagement": path.engagement,
        "engagement_since_start": path.engagement_total,
        "own_slots": list(own_slots(path.counts)),
        "decode_backend": path.backend or None,
        "known_build": path.known_build,
        "steps": [{**key.__dict__, **steps.__dict__} for key, steps in path.counts.items()],
        "steps_since_start": [{**key.__dict__, **steps.__dict__} for key, steps in path.total.items()],
        "refused": list(path.refused),
        "excluded": list(path.excluded),
        "rows_now": path.rows_now,
        "max_rows": path.max_rows,
        "step_ms": path.step_ms,
        "anchor": asdict(path.anchor) if path.anchor else None,
    }


def _node_json(node: NodeView) -> dict[str, Any]:
    rows: list[Mapping[str, Any]] = [
        {
            **gpus.to_json(gpu.sample),
            "nvlink_tx_bytes_s": gpu.nvlink_tx_bytes_s,
            "nvlink_rx_bytes_s": gpu.nvlink_rx_bytes_s,
        }
        for gpu in node.gpus
    ]
    return {"node": node.source, "failure": node.failure or None, "age_s": node.age_s, "gpus": rows}
