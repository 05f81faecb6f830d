"""lm-evaluation-harness as a child process: its task files, its settings, its samples. The I/O of the quality tier.

The harness is the real package in an environment of its own (``make setup-quality``). It gets the server's address,
local files and no network; what it prints stays in a log that is shown when it fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from k3ctl import files
from k3ctl.errors import K3Error, MachineError, UsageError
from k3ctl.loadtest.child import Child, tail
from k3ctl.validate.scores import Score

ENVIRONMENT = ".venv-quality"
NO_ANSWER = "[no answer]"
POLL_S = 0.2
MAX_SAMPLES_BYTES = 1 << 30
REQUEST_TIMEOUT_S = 3600
SUFFIXES: Mapping[str, str] = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True)
class Evaluation:
    """One run of the harness.

    task: name of one of our task files; data: its splits, each a local file; base: a task file of the harness's own
    that ours builds on, relative to its task folder. generation: fields of every request; limit: first questions only.
    """

    task: str
    data: Mapping[str, Path]
    url: str
    model: str
    concurrency: int
    max_gen_toks: int
    base: str | None = None
    num_fewshot: int | None = None
    limit: int | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """What came of it: scores by filter, the harness's version, and a few wrong answers. ``requests``: questions."""

    scores: tuple[Score, ...]
    version: str
    task_version: Any
    requests: int
    wrong: tuple[Mapping[str, str], ...]


def find(given: str | None) -> Path:
    """The harness's program: as given, else of the environment beside ours, else on PATH.

    Raises:
        UsageError: what was given is none.
        MachineError: there is none.
    """
    if given:
        path = Path(given).expanduser()
        program = path / "bin" / "lm_eval" if path.is_dir() else path
        if not os.access(program, os.X_OK) or program.is_dir():
            raise UsageError(f"`{given}` is no lm_eval program", hint="the program, or its environment")
        return program.absolute()
    beside = Path(sys.prefix).with_name(ENVIRONMENT) / "bin" / "lm_eval"
    for place in (str(beside), shutil.which("lm_eval")):
        if place and os.access(place, os.X_OK):
            return Path(place)
    raise MachineError(
        "lm-evaluation-harness is not installed",
        hint="`make setup-quality` installs it in an environment of its own, or give `--option lm_eval=PROGRAM`",
    )


def run(program: Path, wanted: Evaluation, limit_s: float, api_key: str | None = None) -> Evaluated:
    """Run the harness and read what it found.

    Raises:
        UsageError: a data file that cannot be read, or is of no known kind.
        K3Error: it failed, or took longer than ``limit_s`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="k3ctl-quality-") as name:
        work = Path(name)
        config = _write(work, program, wanted)
        log = work / "harness.log"
        argv = [str(program), "run", "--config", str(config)]
        with Child(argv, cwd=work, env=_environment(work, api_key), log=log) as child:
            code = _wait(child.poll, limit_s)
        if code is None:
            raise K3Error(f"lm_eval was stopped after {limit_s:.0f} s", reasons=tail(log))
        if code:
            raise K3Error(f"lm_eval failed with status {code}", reasons=tail(log))
        return _read(work / "out", wanted)


def digest(path: Path) -> str:
    """SHA-256 of a data file, shortened. Raises UsageError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {files.reason(error)}") from error


@contextmanager
def generated(rows: list[dict[str, Any]]) -> Iterator[Path]:
    """Questions as a file, while it is needed."""
    with tempfile.TemporaryDirectory(prefix="k3ctl-set-") as name:
        path = Path(name) / "questions.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        yield path


def _wait(poll: Callable[[], int | None], limit_s: float) -> int | None:
    end = time.monotonic() + limit_s
    while (code := poll()) is None:
        if time.monotonic() > end:
            return None
        time.sleep(POLL_S)
    return code


def _write(work: Path, program: Path, wanted: Evaluation) -> Path:
    """Task folder and settings; returns the settings' path."""
    tasks = work / "tasks"
    shipped = resources.files("k3ctl.validate.sets") / "tasks"
    tasks.mkdir()
    for entry in shipped.iterdir():
        if entry.name.startswith(f"{wanted.task}."):
            (tasks / entry.name).write_text(entry.read_text(encoding="utf-8"), encoding="utf-8")
    where = tasks / f"{wanted.task}.yaml"
    text = where.read_text(encoding="utf-8")
    own: dict[str, Any] = {"dataset_path": _kind(wanted.data), "dataset_name": None}
    own["dataset_kwargs"] = {
        "data_files": {split: str(path.absolute()) for split, path in wanted.data.items()}
    }
    if wanted.base is not None:
        own["include"] = str(_own_tasks(program) / wanted.base)
    kept = re.sub(r"^dataset_path:.*\n", "", text, flags=re.M)
    where.write_text(kept + yaml.safe_dump(own), encoding="utf-8")
    config = work / "config.yaml"
    config.write_text(yaml.safe_dump(settings(wanted, work)), encoding="utf-8")
    return config


def settings(wanted: Evaluation, work: Path) -> dict[str, Any]:
    """The harness's own settings, as its ``--config`` reads them."""
    return {
        "model": "local-chat-completions",
        "model_args": {
            "model": wanted.model,
            "base_url": f"{wanted.url}/v1/chat/completions",
            "num_concurrent": wanted.concurrency,
            "max_retries": 3,
            "timeout": REQUEST_TIMEOUT_S,
            "max_gen_toks": wanted.max_gen_toks,
            "tokenizer_backend": "none",
            "eos_string": "<|unused|>",
        },
        "tasks": [f"k3_{wanted.task}"],
        "include_path": str(work / "tasks"),
        "output_path": str(work / "out"),
        "log_samples": True,
        "apply_chat_template": True,
        "num_fewshot": wanted.num_fewshot,
        "limit": wanted.limit,
        "gen_kwargs": {"max_gen_toks": wanted.max_gen_toks, **wanted.generation},
        "device": "cpu",
    }


def _kind(data: Mapping[str, Path]) -> str:
    kinds = {SUFFIXES.get(path.suffix.lower()) for path in data.values()}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        named = ", ".join(f"`{path}`" for path in data.values())
        raise UsageError(f"{named}: no data files of one kind", hint=f"known endings: {', '.join(SUFFIXES)}")
    return kind


def _own_tasks(program: Path) -> Path:
    """The harness's task folder."""
    found = sorted(program.resolve().parent.parent.glob("lib/python*/site-packages/lm_eval/tasks"))
    if not found:
        raise MachineError(
            f"`{program}` has no task files", hint="is it of an environment with lm_eval installed?"
        )
    return found[0]


def _environment(work: Path, api_key: str | None) -> dict[str, str]:
    """No network but the server, no settings of ours, caches in the work folder."""
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "HOME", "TMPDIR") if name in os.environ
    }
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    return {
        **kept,
        **offline,
        "HF_HOME": str(work / "cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER": NO_ANSWER,
        "OPENAI_API_KEY": api_key or "",
        "NO_PROXY": "*",
        "PYTHONNOUSERSITE": "1",
        "TQDM_DISABLE": "1",
    }


def _read(out: Path, wanted: Evaluation) -> Evaluated:
    results = sorted(out.glob("*/results_*.json"))
    samples = sorted(out.glob(f"*/samples_k3_{wanted.task}_*.jsonl"))
    if not results or not samples:
        raise K3Error("lm_eval ended well but left no results")
    told = files.parse_json(files.text(results[-1], MAX_SAMPLES_BYTES, "results"), "lm_eval's results")
    lines = files.text(samples[-1], MAX_SAMPLES_BYTES, "samples").splitlines()
    rows = [files.parse_json(line, "lm_eval's samples") for line in lines if line.strip()]
    scores = read_scores(rows)
    wrong = [row for row in rows if row["filter"] == rows[0]["filter"] and not _points(row)]
    return Evaluated(
        scores=scores,
        version=str(told.get("lm_eval_version", "")),
        task_version=(told.get("versions") or {}).get(f"k3_{wanted.task}"),
        requests=len(scores[0].points) if scores else 0,
        wrong=tuple({"target": str(row["target"])[:80], "answer": _said(row)[-160:]} for row in wrong[:5]),
    )


def read_scores(rows: list[dict[str, Any]]) -> tuple[Score, ...]:
    """Scores by filter from the harness's samples, in the order of the questions. Raises K3Error for other rows."""
    try:
        names = list(dict.fromkeys(str(row["filter"]) for row in rows))
        ordered = sorted(rows, key=lambda row: int(row["doc_id"]))
        return tuple(
            Score(
                name,
                tuple(_points(row) for row in ordered if row["filter"] == name),
                sum(_said(row) in ("", NO_ANSWER) for row in ordered if row["filter"] == name),
            )
            for name in names
        )
    except (LookupError, TypeError, ValueError) as error:
        raise K3Error(f"lm_eval's samples cannot be read: {type(error).__name__} {error}") from error


def _points(row: Mapping[str, Any]) -> float:
    """A sample's points: its one metric."""
    return float(row[row["metrics"][0]])


def _said(row: Mapping[str, Any]) -> str:
    """The first answer, as it came."""
    answer = row["resps"]
    while isinstance(answer, list):
        answer = answer[0] if answer else ""
    return str(answer).strip()
