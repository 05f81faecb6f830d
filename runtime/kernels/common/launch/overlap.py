"""How far a kernel overlaps its neighbours in a chain of programmatic dependent launches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Overlap:
    """Promises about the neighbours of one call site; without promises a kernel is safe anywhere.

    By default a kernel reads only weights and host-written tables before its dependency wait, and lets its successor
    start right after that wait. So when a kernel starts, everything before its immediate predecessor is complete.

    settled: the operator's state inputs (named in its `spec`) were last written before the immediate predecessor,
    and the predecessor keeps the rule above, or is launched without programmatic dependent launch. They are then read
    before the wait, while the predecessor still runs.
    early_trigger: the successor reads only weights before its own wait, so it may start before this kernel has waited.
    """

    settled: bool = False
    early_trigger: bool = False
