"""Captures of nvidia-smi (``-q``, ``-L``, ``nvlink -s``, ``--query-gpu … --format=csv``) and dcgmi."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace

from k3ctl.checks.captures import words
from k3ctl.checks.captures.partial import Partial
from k3ctl.gpus.types import Gpu, Link, Memory, Mig, MigDevice, NvmlSystem, Pci, RemappedRows
from k3ctl.host.kernel_log import bus_id
from k3ctl.host.types import Host, Xid
from k3ctl.host.values import NOT_CAPTURED, Maybe, Refused

_GPU_BLOCK = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)\s*$")
_LISTED = re.compile(r"^\s*GPU (\d+): (.+?)(?: \(UUID: (\S+)\))?\s*$")
_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+:\s*\(UUID: (MIG-\S+)\)")
_LINK = re.compile(r"^\s*Link (\d+): (.+?)\s*$")
_SPEED = re.compile(r"([\d.]+) GB/s")
_DCGM_GPU = re.compile(r"^\s*gpuId (\d+):")
_DCGM_LINKS = re.compile(r"^\s*([UDX_](?:\s+[UDX_])*)\s*$")
_ATTACHED = "attached gpus"
_NO_NVML = re.compile(r"Failed to initialize NVML: ([^\n]+)")
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu)(?:\d{1,2}: )?\s*"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]): ([^\n]+)"
)
NVML_UNKNOWN_ERROR = 999
NVML_MESSAGES = {
    "insufficient permissions": 4,
    "not found": 6,
    "driver not loaded": 9,
    "timeout": 10,
    "gpu is lost": 15,
    "gpu access blocked by the operating system": 17,
    "driver/library version mismatch": 18,
    "unknown error": NVML_UNKNOWN_ERROR,
}
"""NVML's messages and their nvmlReturn_t."""
_FAILURES = (
    ("couldn't communicate with the NVIDIA driver", Refused("DriverNotLoaded", 9)),
    ("No devices were found", Refused("NoDevicesFound", 6)),
    ("command not found", Refused("LibraryNotFound", 12)),
)


def failure(text: str) -> Partial | None:
    """What a failed ``nvidia-smi`` says: evidence about the driver, not an empty capture."""
    if lost := _NO_HANDLE.findall(text):
        faults = tuple(Xid(bus_id(bus), text=f"nvidia-smi: {said.strip(' .')}") for bus, said in lost)
        return Partial(host=Host(hostname="", xids=faults))
    if match := _NO_NVML.search(text):
        said = match[1].strip(" .")
        return Partial(
            nvml=NvmlSystem(error=Refused(said, NVML_MESSAGES.get(said.lower(), NVML_UNKNOWN_ERROR)))
        )
    return next((Partial(nvml=NvmlSystem(error=error)) for said, error in _FAILURES if said in text), None)


def looks_like_query(text: str) -> bool:
    """``nvidia-smi -q``."""
    return "NVSMI LOG" in text or any(_GPU_BLOCK.match(line) for line in text.splitlines())


def query(text: str) -> Partial:
    """``nvidia-smi -q``: driver, and per GPU name, fabric, MIG, memory, requested recovery."""
    notes: list[str] = []
    head, blocks = _blocks(text)
    cuda = re.fullmatch(r"(\d+)\.(\d+)", head.get("cuda version", ""))
    gpus = [_queried(index, bus, fields, notes) for index, (bus, fields) in enumerate(blocks)]
    attached = head.get(_ATTACHED, "")
    if attached.isdigit() and int(attached) != len(gpus):
        notes.append(f"`nvidia-smi -q` says {attached} attached GPUs and describes {len(gpus)}")
    return Partial(
        nvml=NvmlSystem(
            driver=head.get("driver version") or None,
            cuda_driver=int(cuda[1]) * 1000 + int(cuda[2]) * 10 if cuda else None,
        ),
        gpus=tuple(gpus),
        notes=tuple(dict.fromkeys(notes)),
    )


def _blocks(text: str) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
    """Head fields, and per GPU its fields as ``section/key`` and ``key`` (the first of a name wins)."""
    head: dict[str, str] = {}
    blocks: list[tuple[str, dict[str, str]]] = []
    sections: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := _GPU_BLOCK.match(line):
            blocks.append((match[1], {}))
            sections = []
            continue
        key, found, value = line.partition(" : ")  # the first colon only: values hold colons too
        if not found:
            key, found, value = (
                line.rstrip().partition(":") if line.rstrip().endswith(":") else (line, "", "")
            )
        name, indent = key.strip().lower(), len(line) - len(line.lstrip())
        if not name:
            continue
        target = blocks[-1][1] if blocks else head
        if not found:
            sections = [(at, section) for at, section in sections if at < indent] + [(indent, name)]
            continue
        path = "/".join(section for at, section in sections if at < indent)
        target.setdefault(f"{path}/{name}" if path else name, value.strip())
    return head, blocks


def _queried(index: int, bus: str, fields: dict[str, str], notes: list[str]) -> Gpu:
    fabric = {path.rpartition("/")[2]: value for path, value in fields.items() if path.startswith("fabric/")}
    has_fabric = any(path.startswith("fabric") for path in fields)
    mode = fields.get("mig mode/current", "").lower()
    total = words.size_bytes(fields.get("fb memory usage/total", ""))
    used = words.size_bytes(fields.get("fb memory usage/used", ""))
    action = fields.get("gpu recovery action", "")
    return Gpu(
        index=index,
        pci=Pci(bus_id=bus.upper()),
        name=fields.get("product name") or NOT_CAPTURED,
        uuid=fields.get("gpu uuid") or NOT_CAPTURED,
        fabric=words.fabric(fabric, notes) if has_fabric else NOT_CAPTURED,
        mig=Mig(mode=(int(mode == "enabled"),) * 2) if mode in ("enabled", "disabled") else Mig(),
        memory=Memory(total, total - used, used) if total and used is not None else NOT_CAPTURED,
        recovery_action=words.number(words.RECOVERY, action, "GPU recovery action", notes)
        if action.lower() not in words.NOT_AVAILABLE
        else NOT_CAPTURED,
        remapped_rows=_remapped(fields),
        clock_event_reasons=_clock_events(fields),
    )


def _remapped(fields: dict[str, str]) -> Maybe[RemappedRows]:
    def read(key: str) -> str:
        return fields.get(f"remapped rows/{key}", "").lower()

    counts = [read("correctable error"), read("uncorrectable error")]
    if read("pending") not in ("yes", "no") or not all(count.isdigit() for count in counts):
        return NOT_CAPTURED
    failed = read("remapping failure occurred")
    return RemappedRows(int(counts[0]), int(counts[1]), int(read("pending") == "yes"), int(failed == "yes"))


def _clock_events(fields: dict[str, str]) -> Maybe[int]:
    """The clock event reasons as NVML's mask; the section has had two names."""
    active = [
        fields.get(f"{section}/{path}", "").lower()
        for section in ("clocks event reasons", "clocks throttle reasons")
        for path in words.CLOCK_EVENTS
    ]
    if not any(active):
        return NOT_CAPTURED
    bits = [*words.CLOCK_EVENTS.values(), *words.CLOCK_EVENTS.values()]
    return sum({bit for word, bit in zip(active, bits, strict=True) if word == "active"})


def looks_like_list(text: str) -> bool:
    """``nvidia-smi -L`` or ``nvlink -s``."""
    return any(_LISTED.match(line) for line in text.splitlines())


def listing(text: str) -> Partial:
    """``nvidia-smi -L`` and ``nvidia-smi nvlink -s``: names, MIG instances, link states and speeds."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        if match := _LISTED.match(line):
            gpus.append(Gpu(index=int(match[1]), name=match[2].strip(), uuid=match[3] or NOT_CAPTURED))
        elif gpus and (match := _MIG.match(line)):
            mig = gpus[-1].mig
            device = MigDevice(uuid=match[2], name=f"MIG {match[1]}")
            gpus[-1] = replace(gpus[-1], mig=Mig(mode=(1, 1), devices=(*mig.devices, device)))
        elif gpus and (match := _LINK.match(line)):
            gpus[-1] = replace(gpus[-1], links=(*gpus[-1].links, _link(int(match[1]), match[2])))
    return Partial(gpus=tuple(gpus))


def _link(number: int, text: str) -> Link:
    if match := _SPEED.search(text):
        return Link(link=number, state=1, speed_mb_s=round(float(match[1]) * 1000))
    inactive = "inactive" in text.lower()
    return Link(link=number, state=0 if inactive else Refused(f"Unknown: {text[:40]}"))


def looks_like_csv(text: str) -> bool:
    """``nvidia-smi --query-gpu=index,… --format=csv`` with its header."""
    head = text.lstrip().splitlines()[:1]
    names = [name.split("[")[0].strip() for name in head[0].split(",")] if head else []
    return "index" in names and len(names) > 1


def csv_query(text: str) -> Partial:
    """CSV rows by index: name, bus id, recovery action, fabric state and status, memory, MIG, driver."""
    notes: list[str] = []
    gpus, driver = [], None
    for row in _csv_rows(text):
        if row.get("index", "").isdigit():
            gpus.append(_csv_gpu(row, notes))
            driver = row.get("driver_version") or driver
    return Partial(nvml=NvmlSystem(driver=driver), gpus=tuple(gpus), notes=tuple(dict.fromkeys(notes)))


def _csv_rows(text: str) -> Iterator[dict[str, str]]:
    lines = csv.reader(text.strip().splitlines(), skipinitialspace=True)
    header = [name.split("[")[0].strip() for name in next(lines, [])]
    for values in lines:
        yield dict(zip(header, (value.strip() for value in values), strict=False))


def _csv_gpu(row: dict[str, str], notes: list[str]) -> Gpu:
    action = row.get("gpu_recovery_action", "")
    state = {"state": row.get("fabric.state", ""), "status": row.get("fabric.status", "N/A")}
    state |= {
        "cliqueid": row.get("fabric.cliqueId", "N/A"),
        "clusteruuid": row.get("fabric.clusterUuid", "N/A"),
    }
    complete = "fabric.clusterUuid" in row  # without the UUID the row does not tell the domain
    return Gpu(
        index=int(row["index"]),
        name=row.get("name") or NOT_CAPTURED,
        uuid=row.get("uuid") or NOT_CAPTURED,
        pci=Pci(bus_id=row.get("pci.bus_id") or NOT_CAPTURED),
        fabric=words.fabric(state, notes) if complete else NOT_CAPTURED,
        recovery_action=words.number(words.RECOVERY, action, "GPU recovery action", notes)
        if action.lower() not in words.NOT_AVAILABLE
        else NOT_CAPTURED,
    )


def looks_like_dcgm(text: str) -> bool:
    """``dcgmi nvlink --link-status``."""
    return "gpuId " in text and any(_DCGM_LINKS.match(line) for line in text.splitlines())


def dcgm(text: str) -> Partial:
    """The U/D grid: U up, D down, X disabled, _ not supported."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        if match := _DCGM_GPU.match(line):
            gpus.append(Gpu(index=int(match[1])))
        elif gpus and (match := _DCGM_LINKS.match(line)):
            letters = match[1].split()
            links = tuple(
                Link(link=i, state={"U": 1, "D": 0}.get(letter, Refused("Disabled")))
                for i, letter in enumerate(letters)
                if letter != "_"
            )
            gpus[-1] = replace(gpus[-1], links=(*gpus[-1].links, *links))
    return Partial(gpus=tuple(gpus))
