"""One log line → a record. Knows the prefixes of vLLM 0.27 to 0.33, torch, NCCL and the kernel log."""

from __future__ import annotations

import re
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_VLLM = re.compile(
    r"^(?:\((?P<who>[\w.:\-]+)(?: rank=(?P<rank>\d+))?(?: pid=(?P<pid>\d+))?\)\s?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? "
    r"\[(?P<where>[^\]]*)\] ?)?(?P<text>.*)$",
    re.DOTALL,
)
_TORCH = re.compile(
    r"^(?:\[rank(?P<rank>\d+)\]:)?\[?(?P<level>[WEFI])(?P<stamp>\d{3,4} \d\d:\d\d:\d\d)\S* (?:\d+ )?"
    r"(?P<where>\S+)\] ?(?P<text>.*)$"
)
_RANK = re.compile(r"^\[rank(?P<rank>\d+)\]: ?(?P<text>.*)$")
_NCCL = re.compile(
    r"^(?P<host>[\w.\-]+):(?P<pid>\d+):\d+ \[(?P<rank>\d+)\] (?:(?P<where>\S+:\d+) )?"
    r"NCCL (?P<level>WARN|INFO|ERROR) (?P<text>.*)$"
)
_KERNEL = re.compile(r"^\[\s*\d+\.\d+\] (?P<text>NVRM: .*)$")
_WORKER_RANK = re.compile(r"_(?:TP|PP|DP|EP)(\d+)(?!.*_TP\d)")
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Interrupt)(?::|$)")
_LEVELS = {"W": "WARNING", "E": "ERROR", "F": "ERROR", "I": "INFO", "WARN": "WARNING"}


@dataclass(frozen=True, slots=True)
class Record:
    """One line, taken apart. ``seconds`` counts within a year and only compares."""

    line: int
    """1-based line number in its file."""
    text: str
    who: str = ""
    """``APIServer``, ``EngineCore``, ``Worker_TP3``, ``host:pid``, or empty when the line does not say."""
    rank: int | None = None
    level: str = ""
    stamp: str = ""
    seconds: float | None = None
    where: str = ""
    file: str = ""

    @property
    def bad(self) -> bool:
        """Whether the line reports an error."""
        return self.level in ("ERROR", "CRITICAL")


def parse(line: str, number: int = 0, file: str = "") -> Record | None:
    """The record of a line; None for an empty one and for a reader's ``#`` comment."""
    text = ANSI.sub("", line).rstrip()
    if not text or text.startswith("#"):
        return None
    if found := _NCCL.match(text):
        level = _LEVELS.get(found["level"], found["level"])
        who = f"{found['host']}:{found['pid']}"
        return Record(
            number, found["text"], who, int(found["rank"]), level, where=found["where"] or "", file=file
        )
    if found := _TORCH.match(text):
        rank = int(found["rank"]) if found["rank"] else None
        return Record(
            number, found["text"], _who(rank), rank, _LEVELS[found["level"]], where=found["where"], file=file
        )
    if found := _KERNEL.match(text):
        return Record(number, found["text"], "kernel", None, "ERROR", file=file)
    if found := _RANK.match(text):
        rank = int(found["rank"])
        return Record(number, found["text"], _who(rank), rank, _raised(found["text"]), file=file)
    found = _VLLM.match(text)
    assert found is not None
    who = found["who"] or ""
    return Record(
        number,
        found["text"],
        who,
        int(found["rank"]) if found["rank"] else _rank_in(who),
        found["level"] or _raised(found["text"]),
        found["stamp"] or "",
        _seconds(found["stamp"]),
        found["where"] or "",
        file,
    )


def raised(text: str) -> bool:
    """Whether ``text`` is the last line of a traceback: the exception and its message."""
    return bool(_RAISED.match(text))


def _raised(text: str) -> str:
    return "ERROR" if raised(text.strip()) else ""


def _who(rank: int | None) -> str:
    return "" if rank is None else f"rank{rank}"


def _rank_in(who: str) -> int | None:
    found = _WORKER_RANK.search(who)
    return int(found[1]) if found else None


def _seconds(stamp: str | None) -> float | None:
    if not stamp:
        return None
    month, day, hour, minute, second = (int(part) for part in re.split(r"[- :]", stamp))
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)
