"""Linear work, counted: no pattern takes longer than its line, no line is looked at more often in a longer log."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from k3ctl import triage
from k3ctl.triage import patterns, reader, scan
from k3ctl.triage.rules import all_rules
from tests.triage.logs import api, raised, start, worker

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXCEPT = {"_FLAG", "_TOKENS"}
"""Patterns over text of our own (rules) or of one line that is read once (a command)."""


def compiled_patterns():
    """(name, pattern) of everything compiled in the package, by module."""
    for module in pkgutil.walk_packages(triage.__path__, "k3ctl.triage."):
        loaded = importlib.import_module(module.name)
        holders = [
            loaded,
            *(
                value
                for value in vars(loaded).values()
                if isinstance(value, type) and value.__module__.startswith("k3ctl")
            ),
        ]
        for holder in holders:
            for name, value in vars(holder).items():
                if isinstance(value, re.Pattern) and name not in EXCEPT:
                    yield f"{module.name}.{name}", value.pattern


def test_no_compiled_pattern_can_take_longer_than_its_line():
    found = dict(compiled_patterns())
    assert len(found) > 40
    assert {name: text for name, text in found.items() if patterns.degree(text) > 1} == {}


def test_no_rule_can_take_longer_than_its_line():
    for rule in all_rules():
        for text in (*rule.patterns, rule.within):
            assert patterns.degree(patterns.bounded(text)) <= 1, rule.id


def test_what_is_searched_is_the_bounded_pattern():
    index = scan.rule_index()
    searched = [entry[3] for _, group in index._groups for _, entries in group for entry in entries]
    assert len(searched) > 300
    for pattern in (*searched, *index.withins.values()):
        assert patterns.degree(pattern.pattern) <= 1, pattern.pattern


@pytest.mark.parametrize(
    ("pattern", "degree"),
    [
        (r"a.*?b", 2),
        (r"[^|%]*?:?\s*\d+%", 4),
        (r"^a.*", 1),
        (r"a{1,9}b", 1),
        (r"^(?:x|y+)$", 1),
        (r"(?=.*a)b", 2),
    ],
)
def test_the_degree_of_a_pattern_is_counted_from_its_repetitions(pattern, degree):
    assert patterns.degree(pattern) == degree


@pytest.mark.parametrize(
    ("pattern", "bounded"),
    [
        (r"a.*b\.+[*+]x+?", r"a.{0,400}b\.{1,400}[*+]x{1,400}?"),
        (r"(?P<n>\d+)(?:x)?\*", r"(?P<n>\d{1,400})(?:x)?\*"),
        (r"[^]*]+", r"[^]*]{1,400}"),
    ],
)
def test_bounding_changes_repetitions_and_nothing_else(pattern, bounded):
    assert patterns.bounded(pattern) == bounded


def test_every_pattern_of_a_rule_has_a_text_that_must_stand_in_its_line():
    for rule in all_rules():
        for pattern in rule.patterns:
            texts = patterns.literals(pattern)
            assert texts and min(map(len, texts)) >= 3, (rule.id, pattern, texts)


def test_a_literal_stands_in_everything_that_its_pattern_matches():
    for name in (path for kind in ("vllm-log-*", "nccl-log-*", "dmesg-*") for path in FIXTURES.glob(kind)):
        for line in name.read_text(errors="replace").splitlines():
            for rule in all_rules():
                for pattern in rule.patterns:
                    if re.search(patterns.bounded(pattern), line):
                        assert any(text in line for text in patterns.literals(pattern)), (rule.id, line)


def test_pieces_cover_their_texts():
    texts = ["out of memory", "of memory", "CUDA", "abc", "x"]
    groups = patterns.cover(texts)
    assert sorted(text for group in groups.values() for text in group) == sorted(texts)
    assert all(piece in text for piece, group in groups.items() for text in group)


def work(lines: list[str], tmp_path: Path, monkeypatch) -> dict[str, int]:
    """What a scan does, counted: lines that leave the reader, patterns searched, characters given to them."""
    counts = {"records": 0, "searches": 0, "characters": 0}
    parse, hits = scan.parse, scan.RuleIndex.hits

    def counted_parse(*args, **kwargs):
        counts["records"] += 1
        return parse(*args, **kwargs)

    def counted_hits(self, text):
        for rule, match in hits(self, text):
            counts["searches"] += 1
            counts["characters"] += len(text)
            yield rule, match

    monkeypatch.setattr(scan, "parse", counted_parse)
    monkeypatch.setattr(scan.RuleIndex, "hits", counted_hits)
    log = tmp_path / "a.log"
    log.write_text("\n".join(lines) + "\n")
    scan.scan([log])
    monkeypatch.undo()
    return counts


ACCESS = 'INFO:     10.0.0.7:51000 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
STATS = api(
    "Engine 000: Avg prompt throughput: 812.3 tokens/s, Avg generation throughput: 98.1 tokens/s, Running: 8 reqs"
)
CHATTER = api("Received request cmpl-1: params: SamplingParams(n=1)")


def test_the_work_grows_as_the_log_and_not_faster(tmp_path, monkeypatch):
    once = [
        *[ACCESS, STATS, CHATTER] * 20,
        *raised(3, "KeyError: 'x'"),
        worker(2, "NCCL error: unhandled cuda error"),
    ]
    few, many = (work([*start(served=True), *once * n], tmp_path, monkeypatch) for n in (10, 40))
    for what in few:
        assert many[what] <= 4.1 * few[what], what


def test_lines_that_say_nothing_cost_nothing(tmp_path, monkeypatch):
    quiet = work(start(served=True), tmp_path, monkeypatch)
    loud = work([*start(served=True), *[ACCESS, CHATTER] * 500], tmp_path, monkeypatch)
    assert loud["records"] <= quiet["records"] + 1, "one answer is read: it proves that the server was ready"


def test_leaving_lines_out_changes_no_verdict(monkeypatch):
    """The reader's short cuts against every line, over all log fixtures."""

    def told(path: Path) -> list[tuple]:
        return [(i.rule.id, i.title, i.first.line, i.count) for i in scan.scan([path]).incidents]

    kinds = (
        "vllm-log-*",
        "nccl-log-*",
        "cuda-log-*",
        "nvml-log-*",
        "dmesg-*",
        "round2/*.log",
        "round2/*/*.log",
    )
    logs = [path for kind in kinds for path in FIXTURES.glob(kind)]
    short = {path: told(path) for path in logs}
    monkeypatch.setattr(reader, "_ANSWERED", re.compile("(?!)"))
    monkeypatch.setattr(reader, "_holds", lambda _line, _texts: True)
    assert {path: told(path) for path in logs} == short


def test_a_long_line_and_a_line_of_one_character_are_read_at_once(tmp_path):
    log = tmp_path / "a.log"
    lines = [
        "x" * 3_000_000,
        "9" * 3_000_000,
        "50% |" * 200_000,
        "(a pid=1) " * 100_000,
        "Error: " * 200_000,
        "{" * 100_000,
    ]
    log.write_text("\n".join([*lines, worker(0, "KeyError: 'end'")]))
    report = scan.scan([log])
    assert (
        report.incidents[-1].first.line == len(lines) + 1 or report.incidents[0].first.line == len(lines) + 1
    )
