"""Read a Prometheus text page that may be wrong in any way.

The grammar is ``prometheus_client``'s; this module decides which lines reach it and what a bad page means.
Only lines of wanted series are parsed, so comments, unknown metric types and foreign exporters cost nothing
and break nothing. A line that cannot be read loses itself, not the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
"""Label pairs sorted by name."""

Series = tuple[str, Labels]
"""A sample's full name (``vllm:prompt_tokens_total``) and its labels."""


class PageError(Exception):
    """The answer is not a metrics page that we can use; the text says what it looks like instead."""


@dataclass(frozen=True)
class Page:
    """The wanted series of one scrape, and what was wrong with it.

    ``problems`` are sentences for people: the page is still usable, minus what they name.
    """

    series: Mapping[Series, float]
    problems: tuple[str, ...] = ()


def parse(body: bytes, wanted: Set[str], *, required_prefix: str) -> Page:
    """Parse a page, keep the samples whose name is in ``wanted``.

    Raises PageError when the body is no exposition text, or holds no series of ``required_prefix``.
    """
    text = body.decode("utf-8", errors="replace")
    _refuse_other_formats(text)
    problems: list[str] = []
    lines = text.split("\n")
    if lines[-1]:
        problems.append("the page breaks off in the middle of a line")
        lines.pop()
    names = [_name(line) for line in lines]
    if not any(name.startswith(required_prefix) for name in names):
        raise PageError(_foreign(names, required_prefix))
    kept = [line for line, name in zip(lines, names, strict=True) if name in wanted]
    series, unreadable, duplicates, not_numbers = _samples(kept)
    if unreadable:
        problems.append(f"{unreadable} unreadable lines skipped")
    if duplicates:
        problems.append(f"{duplicates} duplicate series ignored (the first one counts)")
    if not_numbers:
        problems.append(f"{not_numbers} values are not finite and count as missing")
    return Page(series, tuple(problems))


def _refuse_other_formats(text: str) -> None:
    head = text.lstrip()[:200]
    if not head:
        raise PageError("empty page")
    if head[0] == "<":
        raise PageError("HTML instead of metrics: is a proxy or another service answering?")
    if head[0] in "{[":
        raise PageError("JSON instead of Prometheus text")


def _name(line: str) -> str:
    """The sample name at the start of a line; empty for comments and blank lines."""
    if not line or line[0] == "#":
        return ""
    cut = len(line)
    for separator in ("{", " ", "\t"):
        at = line.find(separator, 0, cut)
        if at >= 0:
            cut = at
    return line[:cut]


def _foreign(names: Iterable[str], required_prefix: str) -> str:
    prefixes = sorted({name.split(":")[0] for name in names if ":" in name})
    if prefixes:
        return f"no `{required_prefix}` series: this is the metrics page of {', '.join(prefixes[:3])}"
    return f"no `{required_prefix}` series on the page"


def _samples(lines: list[str]) -> tuple[dict[Series, float], int, int, int]:
    series: dict[Series, float] = {}
    unreadable = duplicates = not_numbers = 0
    for parsed in _parsed(lines):
        if parsed is None:
            unreadable += 1
            continue
        key, value = parsed
        if key in series:
            duplicates += 1
        elif not math.isfinite(value):
            not_numbers += 1
        else:
            series[key] = value
    return series, unreadable, duplicates, not_numbers


def _parsed(lines: list[str]) -> Iterator[tuple[Series, float] | None]:
    """Samples of all lines; a page with one bad line is read line by line, None marking the bad ones."""
    try:
        yield from list(_families("\n".join(lines)))
    except ValueError:
        for line in lines:
            try:
                yield from list(_families(line))
            except ValueError:
                yield None


def _families(text: str) -> Iterator[tuple[Series, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield (sample.name, tuple(sorted(sample.labels.items()))), float(sample.value)
