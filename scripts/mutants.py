"""Break the code on purpose, one small edit at a time, and see the named tests fail.

    python scripts/mutants.py [--only WORD ...] [--jobs N] [--check]

``scripts/mutants.yaml`` lists the edits: file, old text, new text, and the tests that must kill it. Each is made in
a scratch copy of the tree, never in the tree itself. A mutant is killed when a test fails; when all pass it survived;
when pytest cannot even collect, or runs too long, the edit is no use and counts as neither. The exit status is 1
unless every mutant was killed. ``--check`` only tells whether each edit still applies.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600
KILLED, SURVIVED, UNUSABLE = "killed", "SURVIVED", "UNUSABLE"


@dataclass(frozen=True)
class Mutant:
    """One edit. ``compilers``: its tests need the kernels' environment (CuTe DSL, Triton)."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    compilers: bool = False

    def applies(self, root: Path) -> str:
        """Why the edit cannot be made in the tree at ``root``, or an empty string."""
        path = root / self.file
        found = path.read_text().count(self.old) if path.is_file() else -1
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).exists()]
        if found != 1:
            return f"{self.file}: " + ("no such file" if found < 0 else f"old text found {found} times")
        return f"no such test: {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant; ``by``: the first test that failed, or what went wrong."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float


def load(path: Path) -> list[Mutant]:
    """The list.

    Raises:
        ValueError: an entry is incomplete, changes nothing, or has the name of another.
    """
    mutants = [
        _mutant(group, entry) for group in yaml.safe_load(path.read_text()) for entry in group["edits"]
    ]
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"named twice: {', '.join(sorted(twice))}")
    return mutants


def _mutant(group: dict[str, Any], entry: dict[str, Any]) -> Mutant:
    fields = {key: value for key, value in {**group, **entry}.items() if key not in {"edits", "about"}}
    try:
        mutant = Mutant(**{**fields, "tests": tuple(fields["tests"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{entry.get('name', entry)}: {error}") from None
    if mutant.old == mutant.new:
        raise ValueError(f"{mutant.name}: changes nothing")
    return mutant


def copy_tree(source: Path, target: Path) -> None:
    """Every file of ``source`` that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source, capture_output=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name, follow_symlinks=False)


def run_tests(tree: Path, python: str, tests: tuple[str, ...]) -> tuple[int | None, str]:
    """Exit status of pytest (None: it ran too long) and what it printed."""
    places = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-rfE", "--tb=line", *tests],
        cwd=tree, env={**os.environ, **places}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = child.communicate(timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        os.killpg(child.pid, signal.SIGKILL)
        text, _ = child.communicate()
        if isinstance(error, KeyboardInterrupt):
            raise
        return None, text
    return child.returncode, text


def judge(mutant: Mutant, tree: Path, python: str) -> Outcome:
    """Edit, test, and take the edit out again."""
    path, began = tree / mutant.file, time.monotonic()
    whole = path.read_text()
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        code, text = run_tests(tree, python, mutant.tests)
    finally:
        path.write_text(whole)
    last = text.strip().splitlines()[-1] if text.strip() else ""
    if code == 1 and (failed := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.M)):
        verdict, by = KILLED, re.sub(r"^.*/(?=test_)", "", failed[1])
    elif code == 0:
        verdict, by = SURVIVED, last
    else:
        verdict, by = UNUSABLE, f"ran longer than {TIMEOUT_S} s" if code is None else last
    return Outcome(mutant, verdict, by, time.monotonic() - began)


def table(outcomes: list[Outcome]) -> str:
    """Markdown, for people and for ``docs/log.md``."""
    rows = ["| mutant | file | verdict | by | s |", "|---|---|---|---|---|"]
    for o in outcomes:
        by = o.by.replace("|", "\\|")
        rows.append(f"| {o.mutant.name} | {o.mutant.file} | {o.verdict} | {by} | {o.seconds:.0f} |")
    counts = {v: sum(o.verdict == v for o in outcomes) for v in (KILLED, SURVIVED, UNUSABLE)}
    return "\n".join([*rows, "", ", ".join(f"{verdict} {count}" for verdict, count in counts.items())])


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mutants whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=1, help="how many at the same time (default 1)")
    parser.add_argument("--check", action="store_true", help="only tell whether each edit still applies")
    parser.add_argument("--list", type=Path, default=ROOT / "scripts" / "mutants.yaml", dest="path")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree that is copied")
    parser.add_argument(
        "--kernels-python",
        default=str(ROOT / ".venv-kernels" / "bin" / "python"),
        help="has CuTe DSL and Triton",
    )
    args = parser.parse_args(argv)
    try:
        mutants = load(args.path)
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        parser.error(f"{args.path}: {error}")
    mutants = [
        m for m in mutants if not args.only or any(word.lower() in m.name.lower() for word in args.only)
    ]
    if stale := [f"{m.name}: {why}" for m in mutants if (why := m.applies(args.root))]:
        print("\n".join(["edits that no longer apply:", *stale]))
        return 1
    if args.check or not mutants:
        print(f"{len(mutants)} edits apply")
        return 0 if mutants else 1
    return _run(mutants, args)


def _run(mutants: list[Mutant], args: argparse.Namespace) -> int:
    pythons = {False: sys.executable, True: args.kernels_python}
    with tempfile.TemporaryDirectory(prefix="k3-mutants-") as scratch:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for i in range(args.jobs):
            copy_tree(args.root, Path(scratch) / str(i))
            trees.put(Path(scratch) / str(i))
        for compilers in sorted({m.compilers for m in mutants}):
            tests = tuple(sorted({t for m in mutants if m.compilers is compilers for t in m.tests}))
            code, text = run_tests(Path(scratch) / "0", pythons[compilers], tests)
            if code != 0:
                print(f"the tests do not pass without any mutant:\n{text[-3000:]}")
                return 1

        def one(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                outcome = judge(mutant, tree, pythons[mutant.compilers])
            finally:
                trees.put(tree)
            print(f"{outcome.verdict}: {mutant.name} ({outcome.by})", file=sys.stderr, flush=True)
            return outcome

        with ThreadPoolExecutor(args.jobs) as pool:
            outcomes = list(pool.map(one, mutants))
    print(table(outcomes))
    return 0 if all(outcome.verdict == KILLED for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
