"""Trays on one machine: network, process, mount and host-name namespaces, each with an sshd of its own.

A tray has its own interface, process table, /dev/shm, /tmp, home and state directory; what it shares is the file system
with the code. The operator's terminal is this machine, on the same bridge. Needs root, iproute2, util-linux and
openssh-server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from k3ctl import cli

ROOT = Path(cli.__file__).parents[1]
SUBNET = "203.0.113"
TOOLS = {"sshd": "openssh-server", "ssh-keygen": "openssh-client", "ip": "iproute2", "unshare": "util-linux"}


def missing() -> str:
    """Why no trays can be made here, or an empty string."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [f"{tool} ({package})" for tool, package in TOOLS.items() if _which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    probe = ["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--mount-proc", "true"]
    made = subprocess.run(probe, capture_output=True, text=True)
    return made.stderr.strip()


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def sh(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=check, capture_output=True, text=True)


@dataclass
class Tray:
    """One node."""

    name: str
    address: str
    home: Path
    init: subprocess.Popen[bytes] | None = None
    cable: str = ""

    @property
    def pid(self) -> int:
        """The first process inside: the namespaces' owner."""
        assert self.init is not None
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        return int(children[0])

    @property
    def state(self) -> Path:
        """What K3CTL_STATE_DIR is there."""
        return self.home / "state"

    def processes(self) -> dict[int, str]:
        """Living processes inside by pid outside, without init and sshd's listener; the command lines."""
        with contextlib.suppress(OSError, IndexError):
            inside = str(Path(f"/proc/{self.pid}/ns/pid").readlink())
            return {
                pid: line
                for pid, line in _everyone(inside)
                if pid != self.pid and "sshd: " not in line[:6] and not line.startswith("/usr/sbin/sshd")
            }
        return {}

    def sshd_sessions(self) -> list[int]:
        """The processes of sshd that serve a connection."""
        inside = str(Path(f"/proc/{self.pid}/ns/pid").readlink())
        return [pid for pid, line in _everyone(inside) if line.startswith("sshd: root")]

    def litter(self) -> list[str]:
        """What lies in /dev/shm and /tmp."""
        folders = [Path(f"/proc/{self.pid}/root/dev/shm"), self.home / "tmp"]
        return [str(path) for folder in folders for path in folder.iterdir()]

    @property
    def alive(self) -> bool:
        """Whether its init is there."""
        assert self.init is not None
        with contextlib.suppress(OSError, IndexError):
            return self.pid > 0
        return False

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command inside."""
        return sh("nsenter", "-t", str(self.pid), "-a", *words, check=False)

    def power_off(self) -> None:
        """Everything inside dies at once, without a last word on the wire."""
        self.cut()
        os.kill(self.pid, signal.SIGKILL)

    def cut(self) -> None:
        """Pull the cable: nothing closes a connection."""
        sh("ip", "link", "set", self.cable, "down")

    def join(self) -> None:
        """Put it back."""
        sh("ip", "link", "set", self.cable, "up")


def _everyone(inside: str) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if str((entry / "ns/pid").readlink()) == inside and state not in "ZX":
                found.append(
                    (int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
                )
    return found


@dataclass
class Lab:
    """Some trays on a bridge, and the operator's side of ssh."""

    base: Path
    env: dict[str, str] = field(default_factory=dict)
    """Further variables of every session."""
    bridge: str = "k3lab"
    trays: list[Tray] = field(default_factory=list)

    @property
    def config(self) -> Path:
        """An ssh configuration that reaches the trays by name."""
        return self.base / "ssh_config"

    def start(self, count: int) -> Lab:
        """Make the bridge, the keys and the trays; returns when every sshd listens."""
        Path("/run/sshd").mkdir(exist_ok=True)
        self._unplug()  # what a test that was killed has left
        sh("ip", "link", "add", self.bridge, "type", "bridge")
        sh("ip", "addr", "add", f"{SUBNET}.254/24", "dev", self.bridge)
        sh("ip", "link", "set", self.bridge, "up")
        for key in ("host", "user"):
            sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.base / key))
        shutil.copy(self.base / "user.pub", self.base / "authorized")
        for number in range(count):
            self.trays.append(self._tray(number))
        self._write_config()
        self._await()
        return self

    def _await(self) -> None:
        deadline = time.monotonic() + 20
        for tray in self.trays:
            while self.ssh(tray.name, "true").returncode:
                assert time.monotonic() < deadline, f"sshd of {tray.name} does not answer"
                time.sleep(0.2)

    def ssh(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return sh("ssh", "-F", str(self.config), name, *words, check=False)

    def mend(self) -> None:
        """Every cable in, every tray up, nothing running, for the next test."""
        for number, tray in enumerate(self.trays):
            if not tray.alive:
                tray.init.wait()
                sh("ip", "link", "del", tray.cable, check=False)
                shutil.rmtree(tray.home)
                self.trays[number] = self._tray(number)
                continue
            tray.join()
            for pid in [*tray.processes(), *tray.sshd_sessions()]:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for path in tray.litter():
                shutil.rmtree(path, ignore_errors=True) if Path(path).is_dir() else Path(path).unlink()
        self._await()

    def remove(self) -> None:
        """The files too."""
        shutil.rmtree(self.base, ignore_errors=True)

    def stop(self) -> None:
        """Take everything away."""
        for tray in self.trays:
            if tray.init is not None:
                with contextlib.suppress(OSError, IndexError):
                    os.kill(tray.pid, signal.SIGKILL)
                tray.init.kill()
                tray.init.wait()
        self._unplug()

    def _unplug(self) -> None:
        for device in Path("/sys/class/net").glob(f"{self.bridge}*"):
            sh("ip", "link", "del", device.name, check=False)

    def _tray(self, number: int) -> Tray:
        name, address = f"tray{number}", f"{SUBNET}.{number + 1}"
        tray = Tray(name, address, self.base / name, cable=f"{self.bridge}n{number}")
        tray.home.mkdir()
        for folder in ("state", "tmp"):
            (tray.home / folder).mkdir(mode=0o700)
        (tray.home / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
        (tray.home / "sshd_config").write_text(self._sshd(tray))
        (tray.home / "init.sh").write_text(_INIT.format(name=name, home=tray.home))
        # nothing of a tray outlives the test
        words = "setpriv --pdeathsig KILL unshare --net --pid --mount --uts --ipc --fork --mount-proc --kill-child sh"
        tray.init = subprocess.Popen([*words.split(), str(tray.home / "init.sh")], start_new_session=True)
        deadline = time.monotonic() + 10
        while not (tray.home / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sh("ip", "link", "add", tray.cable, "type", "veth", "peer", "name", "eth0", "netns", str(tray.pid))
        sh("ip", "link", "set", tray.cable, "master", self.bridge, "up")
        for device in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            tray.run("ip", *device.split())
        return tray

    def _sshd(self, tray: Tray) -> str:
        env = {
            "HOME": str(tray.home),
            "K3CTL_STATE_DIR": str(tray.state),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{self.base}:{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
            "OMP_NUM_THREADS": "1",
            **self.env,
        }
        settings = " ".join(f'"{key}={value}"' for key, value in env.items())
        return (
            f"Port 22\nHostKey {self.base}/host\nAuthorizedKeysFile {self.base}/authorized\n"
            f"StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nPrintMotd no\nSetEnv {settings}\n"
        )

    def _write_config(self) -> None:
        host = (self.base / "host.pub").read_text()
        known = "".join(f"{tray.name},{tray.address} {host}" for tray in self.trays)
        (self.base / "known").write_text(known)
        entries = [
            f"Host {tray.name}\n  HostName {tray.address}\n  HostKeyAlias {tray.name}\n"
            for tray in self.trays
        ]
        common = (
            f"Host *\n  User root\n  IdentityFile {self.base}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.base}/known\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
        )
        self.config.write_text("".join(entries) + common)


_INIT = """
hostname {name}
mount -t tmpfs tmpfs /dev/shm
mount --bind {home}/tmp /tmp
mount --bind {home}/hosts /etc/hosts
touch {home}/up
/usr/sbin/sshd -f {home}/sshd_config -E {home}/sshd.log
exec sleep infinity
"""
