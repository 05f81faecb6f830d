"""One log line → a record. Knows the prefixes of vLLM 0.27 to 0.33, torch, NCCL and the kernel, behind any carrier."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from k3ctl.triage.carriers import MONTHS, Carried, seconds_of, unwrap

_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_VLLM = re.compile(
    r"^(?:\((?P<who>[\w.:\-]{1,80})(?: (?P<part>TP\d{1,4}))?(?: rank=(?P<rank>\d{1,6}))?"
    r"(?: pid=(?P<pid>\d{1,10}))?\)\s?){0,3}"
    rf"(?:{_LEVEL} (?:\d{{4}}-)?(?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{{1,9}})? "
    r"(?:\[(?P<where>[^\]]{0,200})\]|(?P<older>\w[\w/]{0,80}\.py:\d{1,6}\])) ?)?(?P<text>.*)$",
    re.DOTALL,
)
_PYTHON = re.compile(
    r"^\d{4}-(?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,9})? ?(?:- )?(?:NIXL )?"
    rf"{_LEVEL}\b(?: -)? {1, 8}(?P<text>.*)$"
)
_TORCH = re.compile(
    r"^(?:\[rank(?P<rank>\d{1,6})\]:)?\[?(?P<level>[WEFI])(?P<stamp>\d{3,4} \d\d:\d\d:\d\d)\S{0,20} {1,8}(?:\d{1,10} )?"
    r"(?P<where>\S{1,200})\] ?(?P<text>.*)$"
)
_RANK = re.compile(r"^\[rank(?P<rank>\d{1,6})\]: ?(?P<text>.*)$")
_NCCL = re.compile(
    r"^(?:\[[\d\- :.]{10,40}\] )?(?P<host>[\w.\-]{1,120}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<rank>\d{1,6})\] "
    r"(?:(?P<before>\S{1,200}:\d{1,6}) )?NCCL (?P<level>WARN|INFO|ERROR) (?P<text>.*)$"
)
_KERNEL = re.compile(
    r"^(?:kern {0,4}:\w{1,8} {0,6}: )?\[ {0,8}(?:\d{1,10}\.\d{1,9}"
    r"|\w{3} (?P<month>\w{3}) (?P<day>[ \d]\d) (?P<clock>\d\d:\d\d:\d\d) \d{4})\] "
    r"(?:(?:[\w.\-]{1,80} )?kernel: )?(?:\[ {0,8}\d{1,10}\.\d{1,9}\] )?(?P<text>.*)$"
)
_WORKER_RANK = re.compile(r"_(TP|PP|DP|EP)(\d{1,6})")
_RAISED = re.compile(r"^(?:[\w.]{1,200}\.)?\w{0,80}(?:Error|Exception|Exit|Interrupt)(?::|$)")
_LEVELS = {"W": "WARNING", "E": "ERROR", "F": "ERROR", "I": "INFO", "WARN": "WARNING"}


@dataclass(frozen=True, slots=True)
class Record:
    """One line, taken apart. ``seconds`` counts within a year and only compares."""

    line: int
    """1-based line number in its file."""
    text: str
    who: str = ""
    """``APIServer``, ``EngineCore``, ``Worker_TP3``, ``host:pid``, ``rank 3``, or empty when the line does not say."""
    rank: int | None = None
    """Of the process's own prefix, or of the launcher's label when the process does not say."""
    level: str = ""
    stamp: str = ""
    seconds: float | None = None
    where: str = ""
    file: str = ""
    source: str = ""
    """Pod, container or host that the carrier names."""
    ident: str = ""
    """The journal's identifier, such as ``systemd``."""
    timed: bool = True
    """Whether ``seconds`` is the line's own time."""
    repeats: int = 1
    pid: int | None = None
    order: int = 0
    """Position over all files, in the order in which they were read."""

    @property
    def bad(self) -> bool:
        """Whether the line reports an error."""
        return self.level in ("ERROR", "CRITICAL")


def parse(
    line: str, number: int = 0, file: str = "", order: int = 0, since: float | None = None
) -> Record | None:
    """The record of a line; None for an empty one and for a reader's ``#`` comment.

    NCCL and plain prints carry no time: they happened at ``since``, the time of the line before; where that is not
    known either, the carrier's time counts.
    """
    carried = unwrap(line)
    text = carried.text
    if not text or text.isspace() or text.startswith("#"):
        return None
    own = _own(text, carried)
    who, rank = own.who, own.rank
    if rank is None and not who:
        rank, who = carried.rank, _who(carried.rank)
    timed = own.seconds is not None
    return Record(
        number,
        own.text,
        who,
        rank,
        own.level,
        own.stamp,
        own.seconds if timed else since if since is not None else carried.seconds,
        own.where,
        file,
        carried.source,
        carried.ident,
        timed,
        carried.repeats,
        own.pid,
        order or number,
    )


def raised(text: str) -> bool:
    """Whether ``text`` is the last line of a traceback: the exception and its message."""
    return bool(_RAISED.match(text))


def continues(text: str) -> bool:
    """Whether ``text`` is a part of a traceback or of a longer message, not a report of its own."""
    return text[:1].isspace() or text.startswith(
        ("Traceback (most", "During handling of", "The above exception")
    )


class _Own(NamedTuple):
    """What a line's own prefix says."""

    text: str
    who: str = ""
    rank: int | None = None
    level: str = ""
    stamp: str = ""
    seconds: float | None = None
    where: str = ""
    pid: int | None = None


def _own(text: str, carried: Carried) -> _Own:
    if text[0] == "(" and carried.ident != "kernel":
        return _vllm(text)
    if found := _NCCL.match(text):
        level = _LEVELS.get(found["level"], found["level"])
        who = f"{found['host']}:{found['pid']}"
        return _Own(found["text"], who, int(found["rank"]), level, where=found["before"] or "")
    if found := _TORCH.match(text):
        return _torch(found)
    if found := _KERNEL.match(text):
        seconds = None
        if found["month"] in MONTHS:
            seconds = seconds_of(MONTHS[found["month"]], int(found["day"]), found["clock"])
        return _Own(found["text"], "kernel", level="ERROR", seconds=seconds)
    if carried.ident == "kernel":
        return _Own(text, "kernel", level="ERROR")
    if found := _RANK.match(text):
        rank = int(found["rank"])
        return _Own(found["text"], _who(rank), rank, _raised(found["text"]))
    return _vllm(text)


def _torch(found: re.Match[str]) -> _Own:
    rank = int(found["rank"]) if found["rank"] else None
    digits, _, clock = found["stamp"].partition(" ")
    seconds = seconds_of(int(digits[:-2]), int(digits[-2:]), clock)
    level = _LEVELS[found["level"]]
    return _Own(found["text"], _who(rank), rank, level, seconds=seconds, where=found["where"])


def _vllm(text: str) -> _Own:
    found = _VLLM.match(text)
    assert found is not None
    who = found["who"] or ""
    if found["part"]:
        who = f"{who}_{found['part']}"
    level, stamp, rest = found["level"] or "", found["stamp"] or "", found["text"]
    if not level and (inner := _PYTHON.match(rest)):
        level, stamp, rest = inner["level"], inner["stamp"], inner["text"]
    rank = int(found["rank"]) if found["rank"] else _rank_in(who)
    where = found["where"] or (found["older"] or "").rstrip("]")
    pid = int(found["pid"]) if found["pid"] else None
    return _Own(rest, who, rank, level or _raised(rest), stamp, _seconds(stamp), where, pid)


def _raised(text: str) -> str:
    return "ERROR" if raised(text.strip()) else ""


def _who(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}"


def _rank_in(who: str) -> int | None:
    """The tensor-parallel rank where the name holds one, else the last dimension's."""
    if "_" not in who:
        return None
    names = _WORKER_RANK.findall(who)
    rank = dict(names).get("TP") or next((number for _, number in reversed(names)), None)
    return int(rank) if rank is not None else None


@lru_cache(maxsize=512)
def _seconds(stamp: str) -> float | None:
    if not stamp:
        return None
    date, _, clock = stamp.partition(" ")
    month, day = date.split("-")
    return seconds_of(int(month), int(day), clock)
