"""The command line in the process of the tests: a child would spend more on starting Python than on the answer."""

from __future__ import annotations

import contextlib
import io
import subprocess

from k3ctl import cli


def k3ctl(*args: str) -> subprocess.CompletedProcess[str]:
    """Run ``k3ctl ARGS``: its exit code, and what it wrote to stdout and stderr, neither of them a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(args))
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())
