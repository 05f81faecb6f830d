"""Keeps secrets out of bundles: pure text in, text and a count of replacements out.

Three nets, because each alone leaks: the *values* of this process's own secret-looking environment
variables, the
*shapes* of well-known tokens, and *names* that announce a secret next to them. Prompts that a server logged
and names of this host and user go too.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MASK = "***"
PROMPT_MASK = "[prompt removed]"
MINIMUM = 8
"""Shorter values are not taken for secrets: they would mask ordinary words everywhere."""

SECRET_NAME = re.compile(
    r"(token|secret|passw|credential|api[_-]?key|access[_-]?key|private|auth|cookie|session[_-]id)", re.I
)
NOT_SECRET = re.compile(
    r"(tokenizer|(max|num|per|first|last|inter|prompt|output)_.*tokens?|token_(ids?|iter|lat|len|count)|tokens|author(?!iz))",
    re.I,
)
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.I)

SHAPES = (
    re.compile(r"hf_[A-Za-z0-9]{16,}"),
    re.compile(r"sk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"nvapi-[A-Za-z0-9_-]{16,}"),
    re.compile(r"gh[pousr]_[A-Za-z0-9]{20,}"),
    re.compile(r"github_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"glpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"xox[abprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"(?:AKIA|ASIA)[0-9A-Z]{16}"),
    re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.S),
    re.compile(r"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=[Bb]asic )[A-Za-z0-9+/=]{12,}"),
    re.compile(r"(?<=://)[^\s/@:\"']+:[^\s/@\"']+(?=@)"),
)
NAMED = re.compile(
    r"""(?P<name>(?<![\w-])-{0,2}[\w-]*(?:token|secret|passwd|password|credential|api[_-]?key|access[_-]?key)[\w-]*)
        (?P<glue>["']?\s*[:=]\s*["']?|["']?,?\s+["']?)
        (?P<value>[^\s"',}\]]{8,})""",
    re.I | re.X,
)
LOGGED_PROMPT = re.compile(
    r"""((?:prompt|prompt_token_ids|prompt_embeds|messages|content|request_args)["']?\s*[:=]\s*)"""
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\[[^\]]*\])""",
    re.I,
)


@dataclass(frozen=True)
class Redactor:
    """What to hide: exact strings (longest first) and what stands in their place."""

    replacements: tuple[tuple[str, str], ...]

    def text(self, text: str) -> tuple[str, int]:
        """The text without secrets, and how many places changed."""
        text, count = self._everywhere(text)
        text, found = _named(text)
        return text, count + found

    def json(self, text: str) -> tuple[str, int]:
        """JSON or JSON lines without secrets: values are replaced in place, every other byte stays.

        A document that does not parse is treated as text.
        """
        try:
            documents = [json.loads(text)]
        except ValueError:
            try:
                documents = [json.loads(line) for line in text.splitlines() if line.strip()]
            except ValueError:
                return self.text(text)
        text, count = self._everywhere(text)
        for value in sorted(
            {found for document in documents for found in named_values(document)}, key=len, reverse=True
        ):
            encoded = json.dumps(value, ensure_ascii="\\u" in text)
            count += text.count(encoded)
            text = text.replace(encoded, json.dumps(MASK))
        return text, count

    def _everywhere(self, text: str) -> tuple[str, int]:
        count = 0
        for value, mask in self.replacements:
            count += text.count(value)
            text = text.replace(value, mask)
        for shape in SHAPES:
            text, found = shape.subn(MASK, text)
            count += found
        return text, count

    def log(self, text: str) -> tuple[str, int]:
        """A server's log: the same, and no prompt that the server wrote down."""
        text, prompts = LOGGED_PROMPT.subn(lambda match: f"{match[1]}{PROMPT_MASK}", text)
        text, count = self.text(text)
        return text, count + prompts


def redactor(environment: Mapping[str, str], *, host: str = "", user: str = "", home: str = "") -> Redactor:
    """A redactor that knows this process's environment, host and user."""
    values = {value for name, value in environment.items() if secret_name(name) and len(value) >= MINIMUM}
    replacements = [(value, MASK) for value in values]
    replacements += [(home, "~")] if len(home) > 2 and home != "/root" else []
    replacements += [(host, "HOST")] if len(host) > 3 and host != "localhost" else []
    replacements += [(f"/{user}/", "/USER/")] if len(user) > 2 and user != "root" else []
    return Redactor(tuple(sorted(replacements, key=lambda pair: -len(pair[0]))))


def secret_name(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return bool(SECRET_NAME.search(name)) and not NOT_SECRET.search(name)


def allowed(environment: Mapping[str, str], prefixes: Iterable[str]) -> dict[str, str]:
    """Variables that a bundle may show: named by an allow-list of prefixes, values of secret names masked."""
    chosen = tuple(prefixes)
    return {
        name: MASK if secret_name(name) else value
        for name, value in sorted(environment.items())
        if name.startswith(chosen)
    }


def command_line(argv: Sequence[str]) -> str:
    """An argv as one shell line."""
    return shlex.join(argv)


def named_values(value: Any, name: str = "") -> Iterator[str]:
    """Strings in a JSON document that stand under a secret name, or after a secret option in a list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from named_values(inner, str(key))
    elif isinstance(value, list | tuple):
        before = ""
        for inner in value:
            option = isinstance(before, str) and before.startswith("--")
            yield from named_values(inner, before if option else name)
            before = inner
    elif isinstance(value, str) and secret_name(name) and len(value) >= MINIMUM and value != MASK:
        yield value


def _named(text: str) -> tuple[str, int]:
    """Values next to a name that announces a secret: ``--api-key X``, ``"token": "X"``, ``PASSWORD=X``."""
    count = 0

    def mask(match: re.Match[str]) -> str:
        nonlocal count
        name = match["name"]
        glue_is_space = not re.search(r"[:=]", match["glue"])
        if not secret_name(name) or NUMBER.fullmatch(match["value"]):
            return match[0]
        if glue_is_space and not name.startswith("--"):  # prose: "the token expired yesterday"
            return match[0]
        count += 1
        return f"{name}{match['glue']}{MASK}"

    return NAMED.sub(mask, text), count
