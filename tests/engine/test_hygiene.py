"""What the long-lived processes load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from k3ctl import cli

ROOT = Path(cli.__file__).parents[1]


def test_the_reaper_loads_the_standard_library_and_k3ctls_foundations_only():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import k3ctl.engine.reaper\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names - set(sys.stdlib_module_names) - {'__main__', 'k3ctl'}))\n"
        "print(sorted(n for n in sys.modules if n.startswith('k3ctl.') and not n.startswith('k3ctl.engine')))"
    )
    # -I: neither site customisation nor the test environment's paths
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(ROOT)], capture_output=True, text=True
    )
    foreign, ours = done.stdout.splitlines()
    assert foreign == "[]", done.stderr
    assert ours == "['k3ctl.errors', 'k3ctl.files', 'k3ctl.redact', 'k3ctl.signals']"
