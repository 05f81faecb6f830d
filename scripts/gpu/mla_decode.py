"""MLA decode on a GPU host, unattended: tests, then a sweep of launch shapes, then the bench, cheapest first.

usage: mla_decode.py OUT [--limit 560] [--only tests-cute,sweep] [--commit HASH]

Every part is a child process with a limit of its own. OUT/parts.json has the exit code and seconds of each, written
after every part; a part that ended well is not run again, so a second call with the same OUT goes on where the first
one stopped. OUT/mla.txt has the last lines of each part, OUT/mla.jsonl the measurements: a few hundred kilobytes.

Parts in order: tests of the CuTe core, of the Triton core, of the rest (graphs, jitter, ranks, long contexts); the
sweep at 200, 8k and 120k; the bench beside FA3, FlashMLA and vLLM's chain where they are installed. Exit code 0 when
all have ended well, 1 when one has not, 2 when time ran out before all were run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TAIL_LINES = 40
RESERVE_S = 5.0


@dataclass(frozen=True)
class Part:
    """A child process: arguments after the interpreter, most seconds it may take."""

    name: str
    arguments: tuple[str, ...]
    limit_s: int


def parts(log: Path, tests: tuple[str, ...]) -> list[Part]:
    """All parts in the order of what they tell for their time."""
    test = (*tests, "runtime/kernels/mla/test_mla_decode_gpu.py", "-k")
    sweep = ("-m", "runtime.kernels.mla.sweep", "--log", str(log))
    bench = ("-m", "runtime.kernels.mla.bench", "--skip-tests", "--log", str(log))
    first = "step_equals or launch_shape or pages_of or padding"
    return [
        Part("tests-cute", (*test, f"({first}) and not triton"), 120),
        Part("tests-triton", (*test, f"({first}) and triton"), 150),
        Part("tests-rest", (*test, f"not ({first}) and not million"), 150),
        Part("tests-million", (*test, "million"), 90),
        Part("sweep-200", (*sweep, "--context", "200"), 40),
        Part("sweep-8k", (*sweep, "--context", "8192"), 40),
        Part("sweep-120k", (*sweep, "--context", "120000"), 60),
        Part("bench-200", (*bench, "--only", "context=200", "--only", "heads=12", "--only", "tokens=1"), 70),
        Part("bench-8k", (*bench, "--only", "context=8192", "--only", "heads=12", "--only", "tokens=1"), 70),
        Part("bench-120k", (*bench, "--only", "context=120000"), 90),
        Part("bench-verify", (*bench, "--only", "tokens=4", "--only", "tokens=8"), 60),
        Part("bench-shards", (*bench, "--only", "part=merge of 8"), 30),
        Part("bench-heads", (*bench, "--only", "heads=6", "--only", "heads=96"), 60),
    ]


def pytest_arguments(folder: Path) -> tuple[str, ...]:
    """pytest without this repository's own settings: a GPU host may lack plugins that only other tests need."""
    settings = folder / "pytest.ini"
    settings.write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers =\n  gpu: x\n  compilers: x\n  slow: x\n")
    run = ("-m", "pytest", "-c", str(settings), "--rootdir", str(ROOT), "-q", "-m", "gpu")
    return (*run, "-p", "no:cacheprovider", "--maxfail=8", "--tb=short")


def run_part(part: Part, seconds: float, text: Path, commit: str) -> dict[str, object]:
    """Run one part for at most `seconds`; its last lines go to `text`. 124 stands for a limit that was reached."""
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "K3_REQUIRE_GPU": "1",
    }
    environment |= {"K3_COMMIT": commit} if commit else {}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        try:
            done = subprocess.run(
                [sys.executable, *part.arguments], stdout=output, stderr=subprocess.STDOUT, env=environment,
                cwd=ROOT, timeout=seconds, check=False,
            )  # fmt: skip
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = 124
        output.seek(0)
        last = output.read().splitlines()[-TAIL_LINES:]
    took = round(time.monotonic() - began, 1)
    with text.open("a", encoding="utf-8") as log:
        log.write(
            "\n".join(
                [f"== {part.name}: exit code {code} after {took} s", *(line[:300] for line in last), ""]
            )
        )
    return {"code": code, "seconds": took}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=560, help="seconds for everything")
    parser.add_argument("--only", default="", help="names of parts, joined by commas")
    parser.add_argument("--commit", default="", help="what the measurements name, where there is no git")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ends, record = time.monotonic() + options.limit, options.out / "parts.json"
    known: dict[str, dict[str, object]] = json.loads(record.read_text()) if record.exists() else {}
    todo = parts(options.out / "mla.jsonl", pytest_arguments(options.out))
    only = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(only) - {part.name for part in todo}):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(p.name for p in todo)}")
    todo = [part for part in todo if not only or part.name in only]
    for part in todo:
        left = ends - time.monotonic() - RESERVE_S
        if known.get(part.name, {}).get("code") == 0 or left < RESERVE_S:
            continue
        known[part.name] = run_part(part, min(part.limit_s, left), options.out / "mla.txt", options.commit)
        record.write_text(json.dumps(known, indent=1))
        sys.stdout.write(f"{part.name}: {known[part.name]}\n")
        sys.stdout.flush()
    codes = [known.get(part.name, {}).get("code") for part in todo]
    return 2 if None in codes else int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
