"""The one redactor: pure text or data in, the same without secrets out. Standard library only.

Three nets, because each alone leaks: *values* that are known to be secret (this process's own variables), *shapes* of
well-known tokens and of secrets in URLs, and *names* that announce a secret next to them. Run records, bundles,
reports, logs and command lines that are shown go through it; prompts that a server logged go too.
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
"""Shorter values of this process's variables are not looked for: they would mask ordinary words everywhere."""

_HARMLESS = re.compile(
    r"tokeni[sz]er?s?|detokeni[sz]\w*|(?<!api[_-])(?<!auth[_-])(?<!access[_-])(?<!hf[_-])(?<!refresh[_-])tokens"
    r"|tokens?[_-]?(ids?|iter|lat|len|count|usage|budget|per)|author(?!i[sz]ation)(s|ed|ity)?\b"
    r"|(max|num|min|per|first|second|last|inter|prompt|output|next|special)[_-](\w+[_-])?token(?![a-z])"
    r"|(public|primary|foreign|sort|cache|partition|idempotency|group|routing)[_-]?key|(?<![a-z])key[_-]?(file|path)",
    re.I,
)
_SECRET = re.compile(
    r"token|secret|passw|passphrase|(?<![a-z])pass(?![a-z])|(?<![a-z])pwd|(?<![a-z])pw(?![a-z])|(?<![a-z])bearer(?![a-z])|credential|private|auth|cookie"
    r"|session[_-]?id|(api|access|account|shared|signing|encryption|master|service|admin|license|bearer)[_-]?key"
    r"|[a-z0-9][_-]key$|signature|connection[_-]?string|(?<![a-z])dsn(?![a-z])",
    re.I,
)
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})

_SHAPES = re.compile(
    r"(?:"
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\b[srp]k_(?:live|test)_[A-Za-z0-9]{10,}|\bnvapi-[A-Za-z0-9_-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bgl[a-z]{2,5}-[A-Za-z0-9_-]{16,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{10,}|\bxapp-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{16,}|\bgsk_[A-Za-z0-9]{16,}|\br8_[A-Za-z0-9]{16,}"
    r"|\bnpm_[A-Za-z0-9]{20,}|\bpypi-[A-Za-z0-9_-]{16,}|\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}|\bdop_v1_[a-f0-9]{16,}"
    r"|\bhv[sbr]\.[A-Za-z0-9_-]{16,}|\bSG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|\bxai-[A-Za-z0-9]{16,}"
    r"|\bAGE-SECRET-KEY-[A-Z0-9]{20,}|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|\bATATT3[A-Za-z0-9_=-]{16,}|\bdapi[a-f0-9]{32}\b"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]{8,}|(?<=/api/webhooks/)\d+/[\w-]{8,}"
    r"|(?<=bearer )[A-Za-z0-9._~+/=-]{8,}|(?<=basic )[A-Za-z0-9+/=]{12,}"
    r")",
    re.S | re.I,
)
# a scheme, then everything before the last @ of the authority: a user, a password, or a token alone
_IN_URL = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*:\\*/\\*/)(?P<user>[^\s/?#\"'<>]+)@", re.I)
_QUERY = re.compile(
    r"(?P<name>(?:[?&;]|\\u0026|%26)(?:sig|signature|se?_?key|key|code|pwd|pass|x-amz-(?:signature|credential|security-token)"
    r"|x-goog-(?:signature|credential)|[\w.-]*(?:token|secret|password|api[_-]?key|access[_-]?key)[\w.-]*)(?:=|%3D))"
    r"(?P<value>[^&\s\"'<>\\;#]+)",
    re.I,
)
_NAMED = re.compile(
    r"""(?P<name>(?<![\w-])-{0,2}[\w-]*(?:token|secret|passw|passphrase|pass|pwd|pw|bearer|credential|key|auth|cookie|signature
          |private|session[_-]?id|connection[_-]?string|dsn)[\w-]*)
        (?P<glue>\\*["']?\s*(?::=|[:=])\s*(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?
          |\\*["']?\s*,\s*(?=\\*["'])|\\*["']?\s+)(?P<bytes>b(?=["']))?
        (?P<value>\\+"(?:[^"\\]|\\(?!"))*\\+" | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | \[[^\]]*\]
          | [^\s"',;}\])&\\]+)""",
    re.I | re.X,
)
_HEADER = re.compile(
    r"(?P<name>(?<![\w-])(?:proxy-)?(?:authorization|cookie|set-cookie)\s*:\s*)(?P<value>[^\"'\r\n]+)", re.I
)
_SAID = re.compile(
    r"(?P<name>(?<!\S)(?:-u|--user|--proxy-user)(?:\s+|=)[\"']?[^\s:\"'/]+:(?!\d+(?!\S))|\bmachine\s+\S+\s+login\s+\S+\s+password\s+)"
    r"(?P<value>[^\s\"']+)"
)
"""curl's user and password, and a line of ``.netrc``."""
_PLAIN = re.compile(
    r"[-+]?[\d.]+(e[-+]?\d+)?|true|false|none|null|nil|yes|no|auto|\[?\*+\]?|\$\{?\w+.*|<.*|\[\s*\]|\{.*",
    re.I,
)
"""Values that are no secret whatever they stand beside: numbers, switches, references, masks."""
_LOGGED_PROMPT = re.compile(
    r"""((?:prompt|prompt_token_ids|prompt_embeds|messages|content|request_args|input_ids)\\*["']?\s*[:=]\s*)"""
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\\+"(?:[^"\\]|\\(?!"))*\\+"|\[[^\]]*\])""",
    re.I,
)
_SHORT = 8
"""Length from which a value beside the bare word ``token`` or ``key`` counts: shorter ones are words of a text."""


@dataclass(frozen=True)
class Redactor:
    """What to hide besides shapes and names: exact strings (longest first) and what stands in their place."""

    replacements: tuple[tuple[str, str], ...] = ()

    def text(self, text: str) -> tuple[str, int]:
        """The text without secrets, and how many places changed."""
        count = 0
        for value, mask in self.replacements:
            count += text.count(value)
            text = text.replace(value, mask)
        for pattern, mask in (
            (_HEADER, rf"\g<name>{MASK}"),
            (_SHAPES, MASK),
            (_IN_URL, rf"\g<scheme>{MASK}@"),
            (_QUERY, rf"\g<name>{MASK}"),
            (_SAID, rf"\g<name>{MASK}"),
        ):
            count += sum(match[0] != match.expand(mask) for match in pattern.finditer(text))
            text = pattern.sub(mask, text)
        text, found = _named(text)
        return text, count + found

    def shown(self, text: str) -> str:
        """The text without secrets."""
        return self.text(text)[0]

    def log(self, text: str) -> tuple[str, int]:
        """A server's log: the same, and no prompt that the server wrote down."""
        text, prompts = _LOGGED_PROMPT.subn(lambda match: f"{match[1]}{PROMPT_MASK}", text)
        text, count = self.text(text)
        return text, count + prompts

    def value(self, value: Any, name: str = "") -> Any:
        """JSON-able data without secrets: strings under a secret name, and secrets inside other strings."""
        if isinstance(value, Mapping):
            return {self._key(key): self.value(inner, _under(name, key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return self._list(value, name)
        if not isinstance(value, str):
            return value
        return MASK if _hidden(name, value) else self.shown(value)

    def argv(self, words: Sequence[str]) -> tuple[str, ...]:
        """A command line without secrets: every word after a secret option goes, up to the next option."""
        return tuple(str(word) for word in self._list(words, ""))

    def command_line(self, words: Sequence[str]) -> str:
        """The same as one shell line."""
        return shlex.join(self.argv(words))

    def json(self, text: str) -> tuple[str, int]:
        """JSON or JSON lines without secrets: strings are replaced in place, every other byte stays.

        A document that does not parse is treated as text. One whose strings cannot be found again in the text (other
        escapes, one key twice) is written anew.
        """
        documents = _documents(text)
        if documents is None:
            return self.text(text)
        cleaned = [self.value(document) for document, _ in documents]
        changed = {
            pair for (old, _), new in zip(documents, cleaned, strict=True) for pair in _differences(old, new)
        }
        if not changed and not any(twice for _, twice in documents):
            return text, 0
        count, replaced = 0, text
        for old, new in sorted(changed, key=lambda pair: -len(pair[0])):
            for ascii_only in (False, True):
                encoded = json.dumps(old, ensure_ascii=ascii_only)
                count += replaced.count(encoded)
                replaced = replaced.replace(encoded, json.dumps(new, ensure_ascii=ascii_only))
        again = _documents(replaced)
        if (
            again is None
            or [document for document, _ in again] != cleaned
            or any(twice for _, twice in again)
        ):
            lines = "\n".join(json.dumps(document, ensure_ascii=False) for document in cleaned)
            return (
                lines if len(cleaned) > 1 else json.dumps(cleaned[0], indent=1, ensure_ascii=False)
            ) + "\n", max(count, len(changed), 1)
        return replaced, count

    def _key(self, key: Any) -> Any:
        return self.shown(key) if isinstance(key, str) else key

    def _list(self, values: Sequence[Any], name: str) -> list[Any]:
        out: list[Any] = []
        option = ""
        for value in values:
            word = value if isinstance(value, str) else ""
            if word.startswith("-") and not _NUMBER.fullmatch(word):
                key, equals, inner = word.partition("=")
                option = key if secret_name(key) and not equals else ""
                out.append(f"{key}={MASK}" if equals and _hidden(key, inner) else self.shown(word))
            else:
                out.append(self.value(value, option or name))
        return out


_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.I)
PLAIN = Redactor()
"""Knows shapes and names only."""


def redactor(environment: Mapping[str, str], *, host: str = "", user: str = "", home: str = "") -> Redactor:
    """A redactor that knows this process's environment, host and user."""
    values = {
        value for name, value in environment.items() if secret_name(name) and len(value) >= MINIMUM
    } - set(filter(None, (home, host)))
    replacements = [(value, MASK) for value in values]
    replacements += [(home, "~")] if len(home) > 2 and home != "/root" else []
    replacements += [(host, "HOST")] if len(host) > 3 and host != "localhost" else []
    replacements += [(f"/{user}/", "/USER/")] if len(user) > 2 and user != "root" else []
    return Redactor(tuple(sorted(replacements, key=lambda pair: -len(pair[0]))))


def secret_name(name: str) -> bool:
    """Whether a variable, option or field of this name holds a secret."""
    bare = name.rpartition(".")[2] if name.startswith("env.") else name
    return bare not in _DIRECTORIES and bool(_SECRET.search(_HARMLESS.sub("", bare)))


def allowed(environment: Mapping[str, str], prefixes: Iterable[str]) -> dict[str, str]:
    """Variables that a bundle may show: named by an allow-list of prefixes, without secrets."""
    chosen = tuple(prefixes)
    return {
        name: str(PLAIN.value(value, name))
        for name, value in sorted(environment.items())
        if name.startswith(chosen)
    }


def secrets(value: Any, name: str = "") -> Iterator[str]:
    """Strings in JSON-able data that stand under a secret name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secrets(inner, _under(name, key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secrets(inner, name)
    elif isinstance(value, str) and _hidden(name, value):
        yield value


def _under(name: str, key: Any) -> str:
    """What a field is called: whatever lies under a secret name is secret."""
    return name if secret_name(name) and not secret_name(str(key)) else str(key)


def _hidden(name: str, value: str) -> bool:
    """Whether ``value`` under ``name`` is to be masked."""
    if not value or _PLAIN.fullmatch(value) or not secret_name(name):
        return False
    return len(value) >= _SHORT or name.strip("-").lower() not in ("token", "key")


def _named(text: str) -> tuple[str, int]:
    """Values next to a name that announces a secret: ``--api-key X``, ``"token": "X"``, ``PASSWORD=X``."""
    count = 0

    def mask(match: re.Match[str]) -> str:
        nonlocal count
        name, glue, value = match["name"], match["glue"], match["value"]
        if not re.search(r"[:=]", glue) and not name.startswith("--"):
            return match[0]  # prose: "the token expired yesterday"
        bare = value.strip("\\\"' ")
        if bare.startswith("-") and not re.search(r"[:=]", glue):
            return match[0]
        if not _hidden(name, bare):
            return match[0]
        count += 1
        if value.startswith("["):
            return f"{name}{glue}[{MASK}]"
        quote = re.match(r"\\*[\"']|", value)
        around = quote[0] if quote else ""
        return f"{name}{glue}{match['bytes'] or ''}{around}{MASK}{around}"

    return _NAMED.sub(mask, text), count


def _documents(text: str) -> list[tuple[Any, bool]] | None:
    """The JSON documents of a text, one or one a line, and whether a key stands twice in each; None: no JSON."""

    def load(part: str) -> tuple[Any, bool]:
        twice = False

        def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
            nonlocal twice
            made = dict(items)
            twice = twice or len(made) != len(items)
            return made

        return json.loads(part, object_pairs_hook=pairs), twice

    try:
        return [load(text)]
    except RecursionError:
        return None
    except ValueError:
        try:
            return [load(line) for line in text.splitlines() if line.strip()] or None
        except (ValueError, RecursionError):
            return None


def _differences(old: Any, new: Any) -> Iterator[tuple[str, str]]:
    """Strings that changed, keys included."""
    if isinstance(old, Mapping):
        for (key, inner), (clean, after) in zip(old.items(), new.items(), strict=False):
            if key != clean:
                yield key, clean
            yield from _differences(inner, after)
    elif isinstance(old, list):
        for inner, after in zip(old, new, strict=True):
            yield from _differences(inner, after)
    elif isinstance(old, str) and old != new:
        yield old, new
