"""GPUs and switches in the kernel log: all Xids of a board are one incident, named by the gravest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from k3ctl.triage.detectors import Detector, Sighting, Story
from k3ctl.triage.records import Record

RESET = "drain the node, then reset the GPU (`nvidia-smi --gpu-reset -i {gpu}`; with NVSwitch all GPUs, or reboot)"
DIAGNOSE = (
    "; run `dcgmi diag -r 3` before it serves again, and take it out of service when the error comes back"
)

# number → (grade, meaning): off bus > hardware > memory > software > echo
_TABLE: dict[int, tuple[str, str]] = {
    8: ("software", "the GPU stopped processing a channel"),
    11: ("software", "invalid or corrupted push buffer"),
    13: ("software", "graphics engine exception"),
    31: ("software", "memory page fault: an illegal address"),
    32: ("software", "invalid or corrupted push buffer"),
    38: ("hardware", "driver firmware error"),
    43: ("echo", "a channel was stopped after a program's fault"),
    45: ("echo", "channels were removed after an earlier error or kill"),
    46: ("hardware", "the GPU stopped processing"),
    48: ("hardware", "uncorrectable memory error"),
    61: ("hardware", "internal microcontroller breakpoint"),
    62: ("hardware", "internal microcontroller halted"),
    63: ("memory", "a memory row was remapped"),
    64: ("hardware", "a memory row could not be remapped"),
    68: ("software", "video engine exception"),
    69: ("software", "graphics engine class error"),
    74: ("hardware", "NVLink error"),
    79: ("bus", "the GPU fell off the bus"),
    92: ("memory", "many corrected memory errors"),
    94: ("memory", "a memory error that was contained"),
    95: ("hardware", "a memory error that was not contained"),
    109: ("software", "context switch time-out"),
    110: ("hardware", "security fault"),
    119: ("hardware", "GSP firmware does not answer"),
    120: ("hardware", "GSP firmware error"),
    121: ("hardware", "C2C link error"),
    136: ("hardware", "C2C or NVLink training failed"),
    137: ("software", "NVLink access to a peer's memory failed"),
    140: ("hardware", "unrecovered memory error"),
    143: ("hardware", "the GPU could not be initialized"),
    144: ("hardware", "NVLink error (SAW)"),
    145: ("hardware", "NVLink error (RLW)"),
    146: ("hardware", "NVLink error (TLW)"),
    147: ("hardware", "NVLink error (TREX)"),
    148: ("hardware", "NVLink error (NVLPW)"),
    149: ("hardware", "NVLink error (NETIR)"),
    150: ("hardware", "NVLink error (MSE)"),
    154: ("advice", "the driver names the recovery"),
    155: ("hardware", "NVLink: the link went down"),
    156: ("memory", "a resource of the GPU was retired"),
    157: ("hardware", "a resource of the GPU could not be retired"),
    158: ("hardware", "fatal time-out of the GPU"),
    160: ("memory", "a memory channel was retired"),
    161: ("hardware", "a memory channel could not be retired"),
}
_GRADES = ("bus", "hardware", "memory", "software", "echo")
# gravest first among those of one grade: what explains the others
_LEADERS = (79, 48, 95, 64, 140, 74, *range(144, 151), 155, 121, 120, 119, 62, 61)


@dataclass
class _Board:
    """One GPU's Xids, in the order in which they came."""

    first: Record
    last: Record
    xids: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)
    recovery: str = ""
    lines: int = 0

    @property
    def grade(self) -> str:
        """Of the gravest Xid; ``unknown`` when the table has none of them."""
        grades = {_TABLE[xid][0] for xid in self.xids if xid in _TABLE}
        if "advice" in grades and not grades & {"bus", "hardware"} and _asks(self.recovery):
            return "hardware"
        return next((grade for grade in _GRADES if grade in grades), "unknown")


class Kernel(Detector):
    """Collects Xid and SXid lines, whatever carried the kernel log."""

    MARKS = ("Xid", "fallen off the bus", "NVRM: GPU")
    _XID = re.compile(
        r"\bXid \(?(?:PCI:)?(?P<gpu>[0-9A-Fa-f:.]{5,20})\)?: (?P<xid>\d{1,4})\b(?P<rest>.{0,300})"
    )
    _PID = re.compile(r"pid='?(?P<pid>\d{1,10})'?(?:, name=(?P<name>[^,\s]{1,60}))?")
    _RECOVERY = re.compile(r"recovery action changed from .{0,60}? to \S{1,10} \((?P<action>[^)]{1,60})\)")
    _SXID = re.compile(
        r"SXid \(?(?:PCI:)?(?P<switch>[0-9A-Fa-f:.]{5,20})\)?: (?P<sxid>\d{1,6}),? ?(?P<rest>.{0,200})"
    )
    _GPU = re.compile(
        r"\bGPU (?:at )?(?:PCI:)?(?P<gpu>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?)"
    )

    def __init__(self) -> None:
        self._boards: dict[str, _Board] = {}
        self._switches: dict[str, tuple[Record, Record, list[int], bool]] = {}
        self._mentioned = ""

    def see(self, record: Record) -> None:
        """Take in a line of the kernel log."""
        text = record.text
        if "Xid" in text:
            if found := self._SXID.search(text):
                self._switch(found, record)
            elif found := self._XID.search(text):
                self._board(found, record)
        elif "fallen off the bus" in text:
            found = self._GPU.search(text)
            self._note(found["gpu"] if found else self._mentioned, 79, record)
        elif "GPU" in text and "NVRM" in text and (found := self._GPU.search(text)):
            self._mentioned = found["gpu"]

    def _board(self, found: re.Match[str], record: Record) -> None:
        board = self._note(found["gpu"], int(found["xid"]), record)
        if process := self._PID.search(found["rest"]):
            board.pids.add(int(process["pid"]))
            if process["name"]:
                board.names.add(process["name"])
        if recovery := self._RECOVERY.search(found["rest"]):
            board.recovery = recovery["action"]

    def _note(self, gpu: str, xid: int, record: Record) -> _Board:
        board = self._boards.setdefault(_address(gpu), _Board(record, record))
        board.last = record
        board.lines += 1
        if xid not in board.xids:
            board.xids.append(xid)
        return board

    def _switch(self, found: re.Match[str], record: Record) -> None:
        rest = found["rest"]
        fatal = ("Fatal" in rest and "Non-fatal" not in rest) or re.search(
            r"Severity [1-9]", rest
        ) is not None
        first, _, sxids, was = self._switches.get(found["switch"], (record, record, [], False))
        if int(found["sxid"]) not in sxids:
            sxids.append(int(found["sxid"]))
        self._switches[found["switch"]] = (first, record, sxids, was or fatal)

    def sightings(self, story: Story) -> Iterator[Sighting]:
        """Boards by grade, switches by severity."""
        by_grade: dict[str, dict[str, _Board]] = {}
        for gpu, board in self._boards.items():
            by_grade.setdefault(board.grade, {})[gpu] = board
        for grade, boards in by_grade.items():
            yield self._sighting(grade, boards, story)
        for switch, (first, last, sxids, fatal) in self._switches.items():
            rule = "nvswitch-error" if fatal else "nvswitch-warning"
            values = {"switch": switch, "sxids": ", ".join(map(str, sxids))}
            yield Sighting(rule, first, last, len(sxids), values, ("kernel",))

    def _sighting(self, grade: str, boards: dict[str, _Board], story: Story) -> Sighting:
        some = list(boards.values())
        xids = list(dict.fromkeys(xid for board in some for xid in board.xids))
        names = sorted({name for board in some for name in board.names})
        who = sorted({story.facts.who_of_pid[p] for b in some for p in b.pids if p in story.facts.who_of_pid})
        leader = next((xid for xid in _LEADERS if xid in xids), xids[0])
        gpus = ", ".join(gpu for gpu in boards if gpu)
        values = {
            "gpus": f" {gpus}" if grade == "bus" and gpus else gpus or "(address unknown)",
            "xids": " " + _numbered(xids)
            if grade != "bus"
            else f" ({_numbered(xids)})"
            if len(xids) > 1
            else "",
            "numbers": ", ".join(map(str, xids)),
            "meaning": _TABLE.get(leader, ("", "unknown"))[1],
            "names": ", ".join(who or names) or "an unnamed process",
            "process": f"; in {', '.join(who or names)}" if who or names else "",
            "switches": self._before(),
            "advice": _advice(boards, xids),
        }
        rule = _RULES[grade] if grade != "software" or xids != [13] else "xid-13"
        first = min((board.first for board in some), key=lambda record: record.order)
        last = max((board.last for board in some), key=lambda record: record.order)
        return Sighting(
            rule, first, last, sum(board.lines for board in some), values, tuple(who) or ("kernel",)
        )

    def _before(self) -> str:
        """What the switches said."""
        said = sorted({sxid for _, _, sxids, _ in self._switches.values() for sxid in sxids})
        if not said:
            return ""
        return f"; an NVSwitch reported SXid {', '.join(map(str, said))}"


_RULES = {
    "bus": "gpu-off-bus",
    "hardware": "gpu-hardware",
    "memory": "gpu-memory-remapped",
    "software": "gpu-software-xid",
    "echo": "gpu-software-xid",
    "unknown": "xid-unknown",
}


def _asks(recovery: str) -> bool:
    """Whether the driver asks for more than nothing."""
    return bool(recovery) and recovery.lower() != "none"


def _advice(boards: dict[str, _Board], xids: list[int]) -> str:
    gpu = next(iter(boards), "") or "GPU"
    text = RESET.format(gpu=gpu)
    asked = sorted({board.recovery for board in boards.values() if _asks(board.recovery)})
    if asked:
        text = f"the driver asks for: {', '.join(asked)}: {text}"
    if any(xid in (74, *range(144, 151), 155) for xid in xids):
        text += "; check links and switches (`nvidia-smi nvlink -e`, fabric manager's log)"
    return text + DIAGNOSE


def _numbered(xids: list[int]) -> str:
    return f"Xid {', '.join(map(str, xids))}"


def _address(gpu: str) -> str:
    """One spelling: domain with four digits, no function."""
    return re.sub(r"^0000(?=[0-9A-Fa-f]{4}:)", "", gpu.partition(".")[0])
