"""Who holds the GPU's memory, when somebody put that below the log."""

from __future__ import annotations

import re
from collections.abc import Mapping

from k3ctl.triage.detectors import Detector
from k3ctl.triage.records import Record


class MemoryHolder(Detector):
    """A line of `nvidia-smi --query-compute-apps` that somebody put below the log."""

    MARKS = ("VLLM::",)
    _LINE = re.compile(r"^(?P<pid>\d{1,10}), (?P<name>VLLM::\S{1,80}), (?P<mib>\d{1,9}) MiB$")

    def __init__(self) -> None:
        self._text = ""

    def see(self, record: Record) -> None:
        """Remember who holds memory."""
        if "VLLM::" in record.text and (found := self._LINE.match(record.text.strip())):
            gib = int(found["mib"]) / 1024
            self._text = f": `kill {found['pid']}` ({found['name']}, {gib:.0f} GiB)"

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """The holder, for the rule that says that memory is held."""
        return {"gpu-memory-held": {"holder": self._text}}
