"""The real uv finds what pip's settings point at: local indexes, with a password, behind a proxy, over TLS."""

from __future__ import annotations

import base64
import http.server
import os
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from environment import UV, Environment, SetupError  # noqa: E402

CONNECTION = ("UV_", "PIP_", "SSL_", "REQUESTS_", "CURL_", "HTTP", "http", "ALL_PROXY", "all_proxy")
OWN_UV = Path(sys.executable).with_name("uv")
pytestmark = pytest.mark.skipif(not OWN_UV.exists(), reason="pip set this environment up, without uv")


def wheel(folder: Path, version: str) -> None:
    """A package `k3probe` that holds nothing but its version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"k3probe-{version}.dist-info"
    with zipfile.ZipFile(folder / f"k3probe-{version}-py3-none-any.whl", "w") as made:
        made.writestr("k3probe.py", f"VERSION = {version!r}\n")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: k3probe\nVersion: {version}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")


class Index(http.server.BaseHTTPRequestHandler):
    """`/simple/k3probe/` and the wheels; asked through a proxy it answers for every host."""

    files: Path
    password = ""
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        wanted = f"Basic {base64.b64encode(self.password.encode()).decode()}"
        if self.password and self.headers.get("Authorization") != wanted:
            self.answer(401, b"")
            return
        path = urlsplit(self.path).path
        if path.rstrip("/") == "/simple/k3probe":
            names = [file.name for file in self.files.glob("*.whl")]
            self.answer(200, "".join(f'<a href="/files/{name}">{name}</a>' for name in names).encode())
        elif (file := self.files / Path(path).name).is_file() and path.startswith("/files/"):
            self.answer(200, file.read_bytes())
        else:
            self.answer(404, b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/html" if body[:1] == b"<" else "application/octet-stream")
        if status == 401:
            self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Served:
    """An index on loopback with version 1.0."""

    def __init__(self, files: Path, password: str = "", certificate: Path | None = None) -> None:
        self.handler = type("Own", (Index,), {"files": files, "password": password, "asked": []})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.port = self.server.server_address[1]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment that sees this one's pip and uv, in a home without settings."""
    for name in [name for name in os.environ if name.startswith(CONNECTION)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "")
    path = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    made = Environment(path, base=OWN_UV.parent.parent)
    own = next(Path(entry) for entry in sys.path if (Path(entry) / "pip").is_dir())
    (made.packages / "below.pth").write_text(f"{own}\n")
    return made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    wheel(tmp_path / "files", "1.0")
    index = Served(tmp_path / "files", "me:s3cret")
    yield index
    index.server.shutdown()


def installed(env: Environment) -> tuple[str, str]:
    """Version and installer of the package."""
    info = next(env.packages.glob("k3probe-*.dist-info"))
    return env.output("import k3probe; print(k3probe.VERSION)").strip(), (
        info / "INSTALLER"
    ).read_text().strip()


def test_an_index_with_a_password_in_its_address(
    env: Environment, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s3cret@127.0.0.1:{served.port}/simple")
    env.install("k3probe")
    assert installed(env) == ("1.0", "uv")
    assert "s3cret" not in env.log.read_text()


def test_files_of_pip_several_indexes_and_the_best_version_of_all(
    env: Environment, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "links", "2.0")
    (tmp_path / "c.txt").write_text("k3probe<3\n")
    wheel(tmp_path / "links", "3.0")
    config = tmp_path / "pip.conf"
    config.write_text(
        f"[global]\nindex-url = http://me:s3cret@127.0.0.1:{served.port}/simple\n"
        f"find-links = {tmp_path / 'links'}\nconstraint = {tmp_path / 'c.txt'}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    env.install("k3probe")
    assert installed(env) == ("2.0", "uv")


def test_no_index_at_all(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "links", "2.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    env.install("k3probe")
    assert installed(env) == ("2.0", "uv")


def test_an_index_that_is_one_more(
    env: Environment, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TORCH_INDEX gives it, beside an index that has an older version."""
    wheel(tmp_path / "newer", "1.0+cpu")
    more = Served(tmp_path / "newer")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s3cret@127.0.0.1:{served.port}/simple")
    env.install("k3probe==1.0", index=f"http://127.0.0.1:{more.port}/simple")
    more.server.shutdown()
    assert installed(env) == ("1.0+cpu", "uv")


def test_an_index_behind_a_proxy(env: Environment, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", f"127.0.0.1:{served.port}")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:s3cret@index.invalid/simple")
    env.install("k3probe")
    assert installed(env) == ("1.0", "uv")
    assert any(path.startswith("http://index.invalid/") for path in served.handler.asked)


def certificates(folder: Path) -> tuple[Path, Path]:
    """An authority's certificate, and one of its server at localhost with the key beside it."""
    authority, server = folder / "ca.pem", folder / "server.pem"
    (folder / "leaf.cnf").write_text("subjectAltName=DNS:localhost\nbasicConstraints=critical,CA:FALSE\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for words in (
        ["req", "-x509", *key, "-days", "2", "-subj", "/CN=Own", "-keyout", "ca.key", "-out", "ca.pem"],
        ["req", *key, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"],
        ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-days", "2", "-extfile", "leaf.cnf", "-out", "server.pem"],
    ):  # fmt: skip
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    return authority, server


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
@pytest.mark.parametrize("trust", ["cert", "requests-ca-bundle", "trusted-host", "none"])
def test_an_index_with_an_organisations_own_certificate(
    env: Environment, tmp_path: Path, trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "files", "1.0")
    authority, certificate = certificates(tmp_path)
    index = Served(tmp_path / "files", certificate=certificate)
    monkeypatch.setenv("PIP_INDEX_URL", f"https://localhost:{index.port}/simple")
    if trust != "none":
        value = f"localhost:{index.port}" if trust == "trusted-host" else str(authority)
        name = trust.upper().replace("-", "_")
        monkeypatch.setenv(name if trust == "requests-ca-bundle" else f"PIP_{name}", value)
        env.install("k3probe")
        assert installed(env) == ("1.0", "uv")
    else:
        with pytest.raises(SetupError, match="not trusted"):
            env.install("k3probe")
    index.server.shutdown()


@pytest.mark.slow
def test_no_index_that_answers_is_one_clear_line(
    env: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(SetupError) as failure:
        env.install("k3probe")
    lines = str(failure.value).splitlines()
    assert len(lines) == 3 and "check the network" in lines[2]
    assert "uv failed (" in capsys.readouterr().out


def test_the_pinned_uv_is_the_one_that_was_tried() -> None:
    done = subprocess.run([OWN_UV, "--version"], capture_output=True, text=True)
    assert done.stdout.split()[1] == UV
