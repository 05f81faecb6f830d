"""Load tests: what to send (presets), who sends it (a client in a child process), what the numbers mean.

``run(workload.load("smoke"), target, out=…)`` returns a ``BenchResult``. Nothing here generates load itself.
"""

from k3ctl.loadtest.driver import BenchResult, run

__all__ = ["BenchResult", "run"]
