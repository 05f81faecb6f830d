"""Quality: lm-evaluation-harness on the server that runs, with questions of local files or generated ones.

Options (``--option NAME=VALUE``): ``gsm8k``, ``gsm8k_train``, ``aime25``, ``mrcr``: data files; ``limit``: first
questions only; ``at_least``: a floor for every score, ``gsm8k_at_least``: for one; ``questions`` and
``needle_sentences`` of the generated sets; ``max_gen_toks``, ``reasoning_effort``, ``concurrency``; ``limit_s``:
seconds for a set; ``lm_eval``: the harness's program or environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from k3ctl.errors import K3Error, MachineError, UsageError
from k3ctl.facts import published
from k3ctl.server import which
from k3ctl.validate import harness, scores
from k3ctl.validate.harness import Evaluation
from k3ctl.validate.record import Check, Judged, not_run, unknown
from k3ctl.validate.session import Session
from k3ctl.validate.sets import GENERATED, needles

SEED = 20261130
QUESTIONS, QUESTIONS_RANDOM = 100, 12
FLOOR = 0.85
"""For the generated sets: a model of K3's size misses almost none. Chosen, not measured on K3."""
MAX_GEN_TOKS, MAX_GEN_TOKS_RANDOM = 32_768, 24
CONCURRENCY = 16
LIMIT_S = 6 * 3600.0
NEEDLE_SENTENCES = 600
SENTENCE_TOKENS = 40
"""Tokens of a sentence of the haystack, generously: with K3's tokenizer it has about 12."""


@dataclass(frozen=True)
class Dataset:
    """A set of local files. ``base``: task of the harness that ours builds on; ``train``: option with examples."""

    name: str
    base: str | None
    train: str | None = None
    fewshot: int | None = None


GSM8K = Dataset("gsm8k", "gsm8k/gsm8k.yaml", "gsm8k_train", 5)
AIME25 = Dataset("aime25", "aime/aime25.yaml")
MRCR = Dataset("mrcr", None)


def generated(name: str, session: Session) -> Judged:
    """A set that k3ctl generates: nothing has to be downloaded."""
    random = session.facts.random_weights
    count = int(number(session, "questions", QUESTIONS_RANDOM if random else QUESTIONS))
    extra = (_sentences(session),) if name == "needles" else ()
    rows = GENERATED[name](count, SEED, *extra)
    with harness.generated(rows) as path:
        return _judged(session, name, {"test": path}, None, None, FLOOR)


def from_files(dataset: Dataset, session: Session) -> Judged:
    """A set of the operator's files."""
    given = session.options.get(dataset.name)
    if not given:
        return not_run(f"no data file: give `--option {dataset.name}=FILE`")
    data = {"test": Path(str(given)).expanduser()}
    train = session.options.get(dataset.train) if dataset.train else None
    if train:
        data["train"] = Path(str(train)).expanduser()
    fewshot = dataset.fewshot if train else 0
    return _judged(session, dataset.name, data, dataset.base, fewshot, None)


def _judged(
    session: Session,
    name: str,
    data: Mapping[str, Path],
    base: str | None,
    fewshot: int | None,
    floor: float | None,
) -> Judged:
    if session.facts.acceptance == "synthetic":
        return not_run("acceptance is synthetic: the text means nothing")
    digests = {split: harness.digest(path) for split, path in data.items()}
    try:
        program = harness.find(_text(session, "lm_eval"))
    except MachineError as error:
        return not_run(f"{error.message}: {error.hint}")
    wanted = _evaluation(session, name, data, base, fewshot)
    try:
        key = which.api_key(os.environ)
        found = harness.run(program, wanted, number(session, "limit_s", LIMIT_S), key)
    except UsageError:
        raise
    except K3Error as error:
        session.foreign(1, None, None)
        return unknown(" — ".join([error.message, *error.reasons[-2:]]))
    session.foreign(found.requests, None, None)
    settings = {
        "set": name,
        "questions": found.requests,
        "harness": "lm_eval",
        "harness_version": found.version,
        "task_version": found.task_version,
        "num_fewshot": fewshot or 0,
        "endpoint": "chat",
        "temperature": 0,
        "max_gen_toks": wanted.max_gen_toks,
        "reasoning_effort": _text(session, "reasoning_effort") or "default",
        "data_sha256": digests,
    }
    return judge(session, name, found, settings, floor)


def judge(
    session: Session, name: str, found: harness.Evaluated, settings: Mapping[str, Any], floor: float | None
) -> Judged:
    """The score against its floor and the published ones; of random weights no score says anything."""
    asked = next((key for key in (f"{name}_at_least", "at_least") if key in session.options), None)
    least = floor if asked is None else number(session, asked, 0)
    first = _preferred(found.scores)
    if session.facts.random_weights and asked is None:
        told = first[0].told if first else "no score"
        evidence = {"scores": [score.json() for score in first], "settings": dict(settings)}
        return unknown(f"{told}; random weights: the harness ran, its score says nothing", **evidence)
    judged = scores.judge(first, least, settings, published.accuracy(name))
    return Judged(
        judged.outcome, judged.statement, {**judged.evidence, "wrong": [dict(row) for row in found.wrong]}
    )


def _preferred(found: tuple[scores.Score, ...]) -> tuple[scores.Score, ...]:
    """The lenient filter first: how a chat model sets its answer is no matter of correctness."""
    return tuple(sorted(found, key=lambda score: score.filter != "flexible-extract"))


def _evaluation(
    session: Session, name: str, data: Mapping[str, Path], base: str | None, fewshot: int | None
) -> Evaluation:
    facts = session.facts
    usual = MAX_GEN_TOKS_RANDOM if facts.random_weights else MAX_GEN_TOKS
    room = max(1, (facts.max_model_len or 2 * usual) // 2)
    effort = _text(session, "reasoning_effort")
    return Evaluation(
        task=name,
        data=data,
        url=session.url,
        model=facts.model,
        concurrency=int(number(session, "concurrency", min(CONCURRENCY, facts.max_num_seqs or CONCURRENCY))),
        max_gen_toks=min(int(number(session, "max_gen_toks", usual)), room),
        base=base,
        num_fewshot=fewshot,
        limit=int(number(session, "limit", 0)) or None,
        generation={"reasoning_effort": effort} if effort else {},
    )


def _sentences(session: Session) -> int:
    """As many sentences as the context holds beside the answer."""
    room = (session.facts.max_model_len or NEEDLE_SENTENCES * 2 * SENTENCE_TOKENS) // 2 // SENTENCE_TOKENS
    least = len(needles.NAMES) * needles.TOLD
    return max(least, min(int(number(session, "needle_sentences", NEEDLE_SENTENCES)), room))


def number(session: Session, name: str, usual: float) -> float:
    """A number of the options that is not negative. Raises UsageError."""
    given = session.options.get(name, usual)
    with contextlib.suppress(TypeError, ValueError):
        if 0 <= float(given) < float("inf"):
            return float(given)
    raise UsageError(f"the option `{name}` is `{given}`", hint="a number is meant, 0 or more")


def _text(session: Session, name: str) -> str | None:
    return str(session.options[name]) if session.options.get(name) else None


def _check(name: str, shows: str, run: Callable[[Session], Judged], seconds: float) -> Check:
    return Check(f"quality.{name}", shows, run, seconds)


CHECKS: tuple[Check, ...] = (
    _check(
        "arithmetic",
        "whole-number arithmetic is right (generated questions)",
        partial(generated, "arithmetic"),
        60,
    ),
    _check(
        "needles", "several needles are told apart (generated documents)", partial(generated, "needles"), 90
    ),
    _check("gsm8k", "GSM8K scores as asked", partial(from_files, GSM8K), 60),
    _check("aime25", "AIME 2025 scores as asked", partial(from_files, AIME25), 60),
    _check("mrcr", "multi-round coreference scores as asked", partial(from_files, MRCR), 60),
)
