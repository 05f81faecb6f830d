"""Captures about the host: shell transcripts, environment files, vLLM's ``collect_env``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from k3ctl.checks.captures import smi, topology, words
from k3ctl.checks.captures.partial import Partial, about_host, overlay
from k3ctl.checks.rules.network import IMAGE_VARIABLE
from k3ctl.gpus.types import NvmlSystem
from k3ctl.host.types import UNLIMITED, Disk, Host, Imex, Library, Service

_PROMPT = re.compile(r"^(?:\[?[\w.-]+@[\w.-]+[ :][^$#]*[$#]|\$) (\S.*)$")
_SETTING = re.compile(r"^\s*(?:export\s+)?([A-Z][A-Z0-9_]+)=(.*)$")
_CHANNEL = re.compile(r"\bchannel(\d+)\s*$", re.MULTILINE)
_DEVICE = re.compile(r"/dev/nvidia\d+\b")
_FIELD = re.compile(r"^(.+?)\s*:\s(.*)$")
_PIP = re.compile(r"^\[(?:pip3?|conda)\]\s+([A-Za-z0-9_.-]+)(?:==|\s+)(\S+)")


def looks_like_transcript(text: str) -> bool:
    """Lines of a terminal: ``$ command`` or ``user@host:~# command``, and its output."""
    return any(_PROMPT.match(line) for line in text.splitlines())


def transcript(text: str, sniff: Callable[[str], Partial | None]) -> Partial:
    """The commands that are known here; the output of any other goes to ``sniff``."""
    whole = Partial()
    notes: list[str] = []
    for command, output in _commands(text):
        part = _command(command, output)
        if part is None:
            part = sniff(output)
        if part is None:
            continue
        notes += part.notes
        disks = (*whole.host.disks, *part.host.disks)
        whole = overlay(whole, part)
        whole = replace(whole, host=replace(whole.host, disks=_join_disks(disks)))
    return replace(whole, notes=tuple(notes))


def _commands(text: str) -> Iterator[tuple[str, str]]:
    command = ""
    lines: list[str] = []
    for line in text.splitlines():
        if match := _PROMPT.match(line):
            if command:
                yield command, "\n".join(lines)
            command, lines = match[1].strip(), []
        else:
            lines.append(line)
    if command:
        yield command, "\n".join(lines)


def _command(command: str, output: str) -> Partial | None:
    parts = command.split()
    if parts[0] == "sudo":
        return _command(" ".join(parts[1:]), output) if parts[1:] else None
    if parts[0] == "nvidia-smi" and (failed := smi.failure(output)):
        return failed
    if parts[0] == "nvidia-imex-ctl" and "-q" in parts:
        return Partial(imex=Imex(ctl_query=_answer(output)))
    if parts[0] == "ls" and "/dev/nvidia" in command and "imex" not in command:
        return about_host(device_files=tuple(dict.fromkeys(_DEVICE.findall(output))))
    if command.startswith("ulimit -"):
        return _limit(parts[1], output.strip())
    if parts[0] == "df":
        return _space(parts[-1], output)
    if command.startswith("stat -f"):
        disk = Disk(role="hf-cache", path=parts[-1], fs_type=output.strip().split("\n")[0] or None)
        return about_host(disks=(disk,))
    if parts[0] == "ls" and "nvidia-caps-imex-channels" in command:
        return Partial(imex=Imex(channels=tuple(int(n) for n in _CHANNEL.findall(output))))
    if command.startswith("systemctl is-active"):
        states = output.split()
        names = [part for part in parts[2:] if not part.startswith("-")]
        found = zip(names, states, strict=False)
        units = {name.removesuffix(".service"): Service("unknown", state) for name, state in found}
        return Partial(services=units)
    if command.startswith("getent hosts"):
        return _addresses(output)
    return None


def _answer(output: str) -> str:
    """The state that ``nvidia-imex-ctl -q`` prints; what it says instead, when it fails, is no silence."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[0][:80] if lines else "no answer"


def _limit(flag: str, value: str) -> Partial | None:
    if value != "unlimited" and not value.isdigit():
        return None
    size = UNLIMITED if value == "unlimited" else int(value)
    if flag == "-l":  # the shell counts KiB
        return about_host(memlock_bytes=size if size < 0 else size * 1024)
    return about_host(nofile=size) if flag == "-n" else None


def _space(path: str, output: str) -> Partial | None:
    rows = [line.split() for line in output.splitlines() if line and not line.startswith("Filesystem")]
    if not rows or len(rows[-1]) < 6:
        return None
    total, free = words.size_bytes(rows[-1][1]), words.size_bytes(rows[-1][3])
    if path == "/dev/shm":
        return about_host(shm_bytes=total)
    disk = Disk(role="hf-cache", path=path, total_bytes=total, free_bytes=free)
    return about_host(disks=(disk,))


def _join_disks(disks: tuple[Disk, ...]) -> tuple[Disk, ...]:
    by_path: dict[str, Disk] = {}
    for disk in disks:
        by_path[disk.path] = overlay(by_path[disk.path], disk) if disk.path in by_path else disk
    return tuple(by_path.values())


def _addresses(output: str) -> Partial | None:
    rows = [line.split() for line in output.splitlines() if line.strip()]
    if not rows or len(rows[0]) < 2:
        return about_host(addresses=())
    return replace(about_host(addresses=tuple(row[0] for row in rows)), hostname=rows[0][1])


def looks_like_settings(text: str) -> bool:
    """A file of ``NAME=value`` lines and comments, nothing else."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and all(_SETTING.match(line) for line in lines)


def settings(text: str) -> Partial:
    """``NAME=value`` lines, with or without ``export`` and quotes."""
    found = (match.groups() for line in text.splitlines() if (match := _SETTING.match(line)))
    return Partial(env={name: value.strip().strip("'\"") for name, value in found})


def looks_like_collect_env(text: str) -> bool:
    """vLLM's or torch's ``collect_env``."""
    return "Nvidia driver version" in text or "vLLM Version" in text or "PyTorch version" in text


def collect_env(text: str) -> Partial:
    """Driver, package versions, environment, GPU list and topology inside a ``collect_env`` report."""
    fields = {m[1].strip(): m[2].strip() for line in text.splitlines() if (m := _FIELD.match(line))}
    packages = {match[1]: match[2] for line in text.splitlines() if (match := _PIP.match(line))}
    for key, name in (("vLLM Version", "vllm"), ("PyTorch version", "torch")):
        if key in fields:
            packages[name] = fields[key].split()[0]
    env = {m[1]: m[2].strip() for line in text.splitlines() if (m := _SETTING.match(line))}
    driver = fields.get("Nvidia driver version", "")
    nccl = env.pop("NCCL_VERSION", "")
    part = Partial(
        nvml=NvmlSystem(driver=driver if driver[:1].isdigit() else None),
        env=env,
        host=Host(
            hostname="",
            packages=packages,
            libraries=(Library("nccl", "", nccl, IMAGE_VARIABLE),) if nccl else (),
        ),
    )
    gpus = {gpu.index: gpu for gpu in smi.listing(text).gpus}
    if topology.looks_like(text):
        matrix = topology.parse(text)
        gpus |= {g.index: overlay(gpus[g.index], g) if g.index in gpus else g for g in matrix.gpus}
        part = replace(part, pairs=matrix.pairs)
    return replace(part, gpus=tuple(gpus.values()))
