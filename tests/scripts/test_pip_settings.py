"""pip's settings reach uv, and what uv has no word for is named."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import pip_settings  # noqa: E402


def settings(*lines: str) -> pip_settings.UvSettings:
    return pip_settings.translate(pip_settings.parse("\n".join(lines)))


@pytest.mark.parametrize(
    ("line", "variable", "value"),
    [
        ("index-url='https://u:p@host/simple'", "UV_INDEX_URL", "https://u:p@host/simple"),
        ("extra-index-url='https://a/s\\nfile:///b/simple'", "UV_EXTRA_INDEX_URL", "https://a/s file:///b/simple"),
        ("find-links='/wheels https://c/'", "UV_FIND_LINKS", "/wheels,https://c/"),
        ("trusted-host='a.example b:8080'", "UV_INSECURE_HOST", "a.example b:8080"),
        ("cert='/etc/ca.pem'", "SSL_CERT_FILE", "/etc/ca.pem"),
        ("client-cert='/etc/me.pem'", "SSL_CLIENT_CERT", "/etc/me.pem"),
        ("proxy='proxy:3128'", "HTTPS_PROXY", "http://proxy:3128"),
        ("proxy='http://me:pw@proxy:3128'", "HTTP_PROXY", "http://me:pw@proxy:3128"),
        ("timeout='2.4'", "UV_HTTP_TIMEOUT", "2"),
        ("default-timeout='180'", "UV_HTTP_TIMEOUT", "180"),
        ("retries='2'", "UV_HTTP_RETRIES", "2"),
        ("keyring-provider='subprocess'", "UV_KEYRING_PROVIDER", "subprocess"),
        ("use-feature='truststore'", "UV_SYSTEM_CERTS", "1"),
        ("no-cache-dir='true'", "UV_NO_CACHE", "1"),
        ("cache-dir='/big/pip'", "UV_CACHE_DIR", "/big/pip/uv"),
        ("pre='yes'", "UV_PRERELEASE", "allow"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("section", ["global", "install", ":env:"])
def test_a_setting_in_any_place_becomes_uvs_variable(
    line: str, variable: str, value: str, section: str
) -> None:
    found = settings(f"{section}.{line}")
    assert found.environ[variable] == value
    assert not found.refused
    assert variable not in settings(f"download.{line}").environ or variable == "UV_INDEX_STRATEGY"


def test_constraints_and_no_index_become_options() -> None:
    found = settings("global.constraint='/ab.txt'", ":env:.no-index='1'")
    assert found.arguments == ["--constraints", "/ab.txt", "--no-index"]
    assert settings(":env:.no-index='false'").arguments == []


@pytest.mark.parametrize(
    "line",
    [
        "no-binary=':all:'",
        "only-binary='numpy'",
        "target='/elsewhere'",
        "user='true'",
        "require-hashes='true'",
        "keyring-provider='import'",
        "use-feature='something-new'",
        "a-setting-of-tomorrow='1'",
        "find-links='/with,comma'",
        "no-index='perhaps'",
        "timeout='soon'",
    ],
)
def test_what_uv_cannot_do_is_named_so_that_pip_installs(line: str) -> None:
    assert settings(f"global.{line}").refused == [line.partition("=")[0]]


def test_the_variable_wins_over_the_command_and_that_over_global_in_any_order_of_lines() -> None:
    lines = [
        "global.index-url='https://g/'",
        "install.index-url='https://i/'",
        ":env:.index-url='https://e/'",
    ]
    for order in itertools.permutations(lines):
        assert settings(*order).environ["UV_INDEX_URL"] == "https://e/"
    assert settings(*lines[:2]).environ["UV_INDEX_URL"] == "https://i/"
    # pip takes an empty variable for none
    assert settings(lines[0], ":env:.index-url=''").environ["UV_INDEX_URL"] == "https://g/"


def test_lines_that_are_no_settings_change_nothing() -> None:
    lines = ["global.index-url='https://g/'", "install.retries='3'", "global.find-links='/w'"]
    noise = [
        "",
        "WARNING: something",
        "global.progress-bar='off'",
        "list.format='json'",
        "global.x=not python",
    ]
    wanted = settings(*lines)
    for seed in range(20):
        mixed = lines + noise
        random.Random(seed).shuffle(mixed)
        assert settings(*mixed) == wanted


@pytest.mark.parametrize(
    ("version", "lines", "system"),
    [
        ("23.2.1", [], False),
        ("24.2", [], True),
        ("26.0.1 from /x/pip (python 3.12)", [], True),
        ("25.1", ["global.cert='/ca.pem'"], False),
        ("25.1", ["global.use-deprecated='legacy-certs'"], False),
        ("", [], False),
    ],
)
def test_uv_trusts_the_systems_certificates_where_pip_does(
    version: str, lines: list[str], system: bool
) -> None:
    found = pip_settings.translate(pip_settings.parse("\n".join(lines)), version)
    assert ("UV_SYSTEM_CERTS" in found.environ) is system


def test_what_was_said_to_uv_itself_wins_and_one_index_more_is_added() -> None:
    found = settings("global.extra-index-url='https://a/'", "global.cert='/pip.pem'")
    merged = found.over({"SSL_CERT_FILE": "/other.pem", "PATH": "/bin"}, "https://torch/")
    assert merged["UV_EXTRA_INDEX_URL"] == "https://a/ https://torch/"
    assert (merged["SSL_CERT_FILE"], merged["PATH"]) == ("/pip.pem", "/bin")
    bundle = found.over({"CURL_CA_BUNDLE": "/curl.pem", "REQUESTS_CA_BUNDLE": "/site.pem"})
    assert bundle["SSL_CERT_FILE"] == "/site.pem"  # as in pip
    told = found.over({"UV_EXTRA_INDEX_URL": "https://mine/"}, "https://torch/")
    assert told["UV_EXTRA_INDEX_URL"] == "https://mine/ https://torch/"


def test_pip_itself_prints_what_is_parsed(tmp_path: Path) -> None:
    """The form of `pip config list` is pip's: asked of the installed one, with a file and variables."""
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex_url = https://g/simple\nextra-index-url =\n    https://a/\n    https://b/\n"
        "[install]\nconstraint = /c.txt\n[list]\nformat = json\n"
    )
    environ = {"PIP_CONFIG_FILE": str(config), "PIP_FIND_LINKS": "/it's here", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], env=environ, capture_output=True, text=True
    )
    found = pip_settings.parse(done.stdout)
    assert found["index-url"] == "https://g/simple"
    assert found["extra-index-url"].split() == ["https://a/", "https://b/"]
    assert (found["constraint"], found["find-links"]) == ("/c.txt", "/it's here")
    assert "format" not in found


def test_a_log_holds_no_password() -> None:
    words = ["pip", "install", "--extra-index-url", "https://me:s3cret@host/simple", "x"]
    assert pip_settings.shown(words) == "pip install --extra-index-url https://***@host/simple x"
