"""What carried a line to its file, taken off: launchers, container runtimes, journals. Pure.

Known: ``srun -l``, ``mpirun --tag-output``, ``pdsh``, torchrun, Ray, ``kubectl logs`` with prefix or times, CRI files,
``docker compose logs``, docker's json-file, journald (short, short-iso, short-full, json), syslog, other JSON with the
line in it, colours, CRLF and carriage returns. They nest; what no carrier explains is the line itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][0-9A-B])"
)
_MAX_LAYERS = 5

_STAMP = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)? ?\d{4}-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)"
_ISO = re.compile(rf"^{_STAMP}(?:[.,]\d{{1,9}})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d)) ")
_CRI = re.compile(r"^(?:stdout|stderr) [FP] ")
_IDENT = re.compile(r"^(?P<host>[\w.\-]{1,80}) (?P<ident>[\w.\-@/()]{1,80})(?:\[\d{1,10}\])?: ?")
_SYSLOG = re.compile(
    r"^(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) (?P<day>[ \d]\d) (?P<clock>\d\d:\d\d:\d\d)"
    r"(?:\.\d{1,9})? (?=[\w.\-]{1,80} [\w.\-@/()]{1,80}(?:\[\d{1,10}\])?: ?)"
)
MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_PRIORITY = re.compile(r"^<\d{1,3}>(?:\d )?")
_KUBECTL = re.compile(
    r"^\[(?P<source>(?:pod|deployment|job|statefulset|daemonset|replicaset)/[^\]\s]{1,200})\] ?"
)
_MPI = re.compile(r"^\[\d{1,6},(?P<rank>\d{1,6})\](?:<std(?:out|err|diag)>)?:? ?")
_TORCHRUN = re.compile(r"^\[(?!rank)[A-Za-z_]{1,32}(?P<rank>\d{1,6})\]: ?")
_SRUN = re.compile(r"^ {0,6}(?P<rank>\d{1,6}): ?")
_COMPOSE = re.compile(r"^(?P<source>[A-Za-z0-9][\w.\-/@]{0,120}) {1,60}\| ?")
_RAY = re.compile(
    r"^\((?P<source>[\w.:<>\-]{1,80}) pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\w.:\-]{1,60}))?\) ?"
)
_RAY_REPEATS = re.compile(r" \[repeated (?P<n>\d{1,9})x across (?:all nodes|cluster)[^\]]{0,200}\]$")
_OWN = (
    r"(?=\([A-Z]\w{0,60}(?: rank=\d{1,6})? pid=\d|(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d |\[rank\d)"
)
_HOST = re.compile(
    rf"^(?P<source>[\w.\-]{{1,120}}): ?{_OWN}|^(?P<pod>[\w.\-]{{1,120}} [\w.\-]{{1,80}}) {_OWN}"
)
_RANK_IN_SOURCE = re.compile(r"rank[-_]?(?P<rank>\d{1,6})\b", re.IGNORECASE)
_JSON_KEYS = ("log", "MESSAGE", "message", "msg", "line")
_JSON_TIMES = ("time", "timestamp", "@timestamp", "ts")


@dataclass(frozen=True, slots=True)
class Carried:
    """A line without its labels, and what they said. ``seconds`` counts within a year and only compares."""

    text: str
    source: str = ""
    """Container, pod, host or unit; empty when no label names one."""
    rank: int | None = None
    """The task or rank that a launcher's label names."""
    ident: str = ""
    """The journal's identifier: ``kernel``, ``systemd``, ``kubelet``, …"""
    seconds: float | None = None
    repeats: int = 1


def unwrap(line: str) -> Carried:
    """Take every label off, from the outside in."""
    carried = Carried(_last_state(line))
    for _ in range(_MAX_LAYERS):
        if not carried.text:
            break
        peeled = _peel(carried)
        if peeled is None:
            break
        carried = peeled
    return carried


def seconds_of(month: int, day: int, clock: str) -> float:
    """Seconds within a year of 31-day months: only to be compared."""
    hour, minute, second = (int(part) for part in clock.split(":"))
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)


def _last_state(line: str) -> str:
    """Without colours; of a line that was overwritten, its last state."""
    if "\x1b" in line:
        line = _ESCAPES.sub("", line)
    return line.rstrip().rpartition("\r")[2]


def _peel(carried: Carried) -> Carried | None:
    """One label less; None when the line starts with none."""
    for layer in _LAYERS.get(_kind(carried.text[0]), ()):
        if (peeled := layer(carried)) is not None:
            return peeled
    return None


def _kind(first: str) -> str:
    return "9" if first.isdigit() or first == " " else "a" if first.isalpha() else first


def _json(carried: Carried) -> Carried | None:
    try:
        data = json.loads(carried.text)
    except (ValueError, RecursionError):
        return None
    value = next((data[key] for key in _JSON_KEYS if key in data), None)
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        # journald writes what is not plain text (colours, for one) as a list of bytes
        value = bytes(value).decode(errors="replace")
    if not isinstance(value, str):
        return None
    host = data.get("_HOSTNAME") or data.get("kubernetes_pod_name") or ""
    ident = data.get("SYSLOG_IDENTIFIER") or ""
    if data.get("_TRANSPORT") == "kernel":
        ident = "kernel"
    return replace(
        carried,
        text=_last_state(value),
        source=carried.source or (host if isinstance(host, str) else ""),
        ident=ident if isinstance(ident, str) else "",
        seconds=_json_seconds(data),
    )


def _json_seconds(data: dict[str, object]) -> float | None:
    for key in _JSON_TIMES:
        if isinstance(text := data.get(key), str) and (found := _ISO.match(text.replace("Z", "Z ") + " ")):
            return seconds_of(int(found["month"]), int(found["day"]), found["clock"])
    return None


def _iso(carried: Carried) -> Carried | None:
    """RFC 3339 before the line: kubectl, docker, CRI; with host and unit behind it, journald."""
    found = _ISO.match(carried.text)
    if found is None:
        return None
    rest = carried.text[found.end() :]
    seconds = seconds_of(int(found["month"]), int(found["day"]), found["clock"])
    if stream := _CRI.match(rest):
        return replace(carried, text=rest[stream.end() :], seconds=seconds)
    return _unit(replace(carried, text=rest, seconds=seconds))


def _syslog(carried: Carried) -> Carried | None:
    found = _SYSLOG.match(carried.text)
    if found is None:
        return None
    seconds = seconds_of(MONTHS[found["name"]], int(found["day"]), found["clock"])
    return _unit(replace(carried, text=carried.text[found.end() :], seconds=seconds))


def _unit(carried: Carried) -> Carried:
    """``host unit[pid]:`` behind a time, when it is there."""
    found = _IDENT.match(carried.text)
    if found is None:
        return carried
    text = carried.text[found.end() :]
    return replace(carried, text=text, source=carried.source or found["host"], ident=found["ident"])


def _simple(pattern: re.Pattern[str]) -> Callable[[Carried], Carried | None]:
    """A label of one pattern; its groups ``rank`` and ``source`` are kept."""

    def layer(carried: Carried) -> Carried | None:
        found = pattern.match(carried.text)
        if found is None:
            return None
        groups = found.groupdict()
        source = groups.get("source") or groups.get("pod") or ""
        named = _RANK_IN_SOURCE.search(source)
        rank = groups.get("rank") or (named["rank"] if named else None)
        return replace(
            carried,
            text=carried.text[found.end() :],
            source=source or carried.source,
            rank=int(rank) if rank else carried.rank,
        )

    return layer


def _ray(carried: Carried) -> Carried | None:
    """Ray's label looks like vLLM's own: it is Ray's with an address, a Ray name, or vLLM's behind it."""
    head = carried.text[:100]
    if (
        "Ray" not in head
        and ", ip=" not in head
        and ") (" not in head
        and "(ray" not in head
        and "(auto" not in head
    ):
        return None
    found = _RAY.match(carried.text)
    if found is None:
        return None
    rest = carried.text[found.end() :]
    names_ray = found["ip"] or found["source"].startswith(("Ray", "raylet", "autoscaler"))
    if not names_ray and not _RAY.match(rest):
        return None
    repeats = 1
    if repeated := _RAY_REPEATS.search(rest):
        rest, repeats = rest[: repeated.start()], int(repeated["n"])
    source = f"{found['source']}:{found['pid']}" if names_ray else carried.source
    return replace(carried, text=rest, source=source, repeats=repeats)


_LAYERS: dict[str, tuple[Callable[[Carried], Carried | None], ...]] = {
    "{": (_json,),
    "<": (_simple(_PRIORITY),),
    "(": (_ray,),
    "[": (_simple(_KUBECTL), _simple(_MPI), _simple(_TORCHRUN)),
    "9": (_iso, _simple(_SRUN), _simple(_COMPOSE), _simple(_HOST)),
    "a": (_syslog, _iso, _simple(_COMPOSE), _simple(_HOST)),
}
"""First character of a line → the labels that can start with it."""
