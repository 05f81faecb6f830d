"""pip's settings as uv's: a pure translation, so that uv asks the indexes that pip would ask. Standard library only.

pip reads variables (``PIP_…``), the section of a command and ``[global]`` of its files, in that order, and ``pip config
list`` prints all of them. What uv cannot do is named, and then pip itself has to install.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""Sections that count for `pip install`; a later one wins."""
TRUSTSTORE = (24, 2)
"""From this version pip trusts the system's certificates, as uv does only when told."""
YES = {"y", "yes", "t", "true", "on", "1"}
NO = {"n", "no", "f", "false", "off", "0"}
# settings of pip's output and checks, and those that choose nothing where every version is pinned
WITHOUT_EFFECT = {
    *("config-file", "debug", "disable-pip-version-check", "exists-action", "format", "log", "no-color"),
    *("no-compile", "no-input", "no-python-version-warning", "no-warn-conflicts", "no-warn-script-location"),
    *("prefer-binary", "progress-bar", "quiet", "require-virtualenv", "root-user-action", "use-deprecated"),
    "verbose",
}


@dataclass
class UvSettings:
    """Settings for `uv pip install`. ``refused``: settings of pip that it has no word for."""

    environ: dict[str, str] = field(default_factory=dict)
    """Variables: they hold passwords in URLs, which a command line would show to everyone."""
    arguments: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def over(self, environ: Mapping[str, str], extra_index: str | None = None) -> dict[str, str]:
        """``environ`` with these settings and one index more; what the user told uv itself wins."""
        told = {name: value for name, value in environ.items() if name.startswith("UV_")}
        bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
        # pip's own client lets these variables win over its `cert` setting
        trusted = {"SSL_CERT_FILE": bundle} if bundle else {}
        merged = {**environ, **self.environ, **trusted, **told}
        if extra_index:
            merged["UV_EXTRA_INDEX_URL"] = " ".join(
                filter(None, [merged.get("UV_EXTRA_INDEX_URL"), extra_index])
            )
        return merged


def parse(listing: str) -> dict[str, str]:
    """The settings that count for `pip install`, by option, from what `pip config list` prints."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        name, equals, quoted = line.partition("=")
        section, _, option = name.rpartition(".")
        if equals and section in found:
            try:
                found[section][option] = str(ast.literal_eval(quoted)).strip()
            except (ValueError, SyntaxError):
                continue
    merged: dict[str, str] = {}
    for section in SECTIONS:
        # pip takes an empty variable for one that is not set
        merged |= {option: value for option, value in found[section].items() if value}
    return merged


def translate(settings: Mapping[str, str], pip_version: str = "") -> UvSettings:
    """``settings`` of pip, as ``parse`` gives them, for uv."""
    # as pip: of all indexes the best version, not the first index that has one
    uv = UvSettings({"UV_INDEX_STRATEGY": "unsafe-best-match"})
    for option, value in settings.items():
        if option in WITHOUT_EFFECT:
            continue
        act = TRANSLATIONS.get(option)
        if act is None or not act(uv, value):
            uv.refused.append(option)
    own_roots = {"SSL_CERT_FILE", "SSL_CERT_DIR"} & uv.environ.keys()
    legacy = "legacy-certs" in settings.get("use-deprecated", "")
    if _version(pip_version) >= TRUSTSTORE and not own_roots and not legacy:
        uv.environ.setdefault("UV_SYSTEM_CERTS", "1")
    return uv


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


Translation = Callable[[UvSettings, str], bool]
"""Adds a value of pip's to uv's settings; False when uv cannot do it."""


def _variable(*names: str) -> Translation:
    def act(uv: UvSettings, value: str) -> bool:
        uv.environ |= dict.fromkeys(names, value)
        return True

    return act


def _words(name: str, separator: str) -> Translation:
    """Values that pip separates by white space and uv by ``separator``."""

    def act(uv: UvSettings, value: str) -> bool:
        words = [_home(word) for word in value.split()]
        uv.environ[name] = separator.join(words)
        return separator == " " or not any(separator in word for word in words)

    return act


def _home(word: str) -> str:
    """pip reads `~` in these values itself; uv leaves that to a shell."""
    return os.path.expanduser(word) if word.startswith("~") else word  # noqa: PTH111  # a URL must stay as it is


def _option(flag: str) -> Translation:
    def act(uv: UvSettings, value: str) -> bool:
        for word in value.split():
            uv.arguments += [flag, _home(word)]
        return True

    return act


def _switch(on: Callable[[UvSettings], None]) -> Translation:
    def act(uv: UvSettings, value: str) -> bool:
        if value.lower() in YES:
            on(uv)
        return value.lower() in YES | NO

    return act


def _certificates(uv: UvSettings, value: str) -> bool:
    path = Path(value).expanduser()
    uv.environ["SSL_CERT_DIR" if path.is_dir() else "SSL_CERT_FILE"] = str(path)
    return True


def _proxy(uv: UvSettings, value: str) -> bool:
    url = value if "://" in value else f"http://{value}"
    uv.environ |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), url)
    return True


def _timeout(uv: UvSettings, value: str) -> bool:
    try:
        uv.environ["UV_HTTP_TIMEOUT"] = str(max(round(float(value)), 1))
    except (ValueError, OverflowError):
        return False
    return True


def _keyring(uv: UvSettings, value: str) -> bool:
    if value == "subprocess":
        uv.environ["UV_KEYRING_PROVIDER"] = value
    return value in ("subprocess", "disabled", "auto")  # `auto` asks nobody under --no-input


def _features(uv: UvSettings, value: str) -> bool:
    if "truststore" in value.split():
        uv.environ["UV_SYSTEM_CERTS"] = "1"
    return set(value.split()) <= {"truststore", "fast-deps"}


TRANSLATIONS: Mapping[str, Translation] = {
    "index-url": _variable("UV_INDEX_URL"),
    "extra-index-url": _words("UV_EXTRA_INDEX_URL", " "),
    "find-links": _words("UV_FIND_LINKS", ","),
    "no-index": _switch(lambda uv: uv.arguments.append("--no-index")),
    "trusted-host": _words("UV_INSECURE_HOST", " "),
    "constraint": _option("--constraints"),
    "build-constraint": _option("--build-constraints"),
    "cert": _certificates,
    "client-cert": _variable("SSL_CLIENT_CERT"),
    "proxy": _proxy,
    "timeout": _timeout,
    "default-timeout": _timeout,
    "retries": _variable("UV_HTTP_RETRIES"),
    "keyring-provider": _keyring,
    "use-feature": _features,
    "no-cache-dir": _switch(lambda uv: uv.environ.update(UV_NO_CACHE="1")),
    "cache-dir": lambda uv, value: _variable("UV_CACHE_DIR")(uv, str(Path(value).expanduser() / "uv")),
    "pre": _switch(lambda uv: uv.environ.update(UV_PRERELEASE="allow")),
}


def shown(words: Iterable[str]) -> str:
    """A command line for a log, without passwords in URLs."""
    return re.sub(r"(?<=://)[^\s/@]+@", "***@", " ".join(words))
