"""The reference page of ``k3ctl doctor``, written from the rules; ``scripts/write_reference.py`` writes it."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks import RULES
from k3ctl.checks.finding import Area, Rule
from k3ctl.checks.multicast import FORBIDDING
from k3ctl.checks.products import ALL_KINDS, GPU_KINDS, SWITCHED
from k3ctl.checks.rules.active import NVLINK_BUS_GB_S, PCIE_BUS_GB_S, SLOW_OF_PEERS, SLOW_OF_PRODUCT
from k3ctl.checks.rules.probe import BROKEN, SLOW
from k3ctl.gpus.active import (
    COLLECTIVE_LIMIT_S,
    REDUCE_BYTES,
    TIMED,
    TRIAD_BYTES,
    TRIAD_LIMIT_S,
    TRIAD_S,
    WARM,
)
from k3ctl.gpus.cuda import COPY_LIMIT_S, MULTICAST_LIMIT_S
from k3ctl.gpus.cuda_child import COPIES, COPY_BYTES

AREAS = {
    Area.DRIVER: "Driver and CUDA",
    Area.GPU: "GPUs",
    Area.NVLINK: "NVLink and fabric",
    Area.MULTICAST: "Multicast",
    Area.MULTI_NODE: "Several hosts",
    Area.HOST: "Host",
    Area.STORAGE: "Storage",
    Area.ENGINE: "Engine settings",
    Area.PROFILE: "What a profile requires",
    Area.REPORT: "Collecting reports",
}

HEAD = f"""\
# k3ctl doctor: reference

Says what a machine or a group of machines can run, and why not. It changes nothing.

| command | reads |
|---|---|
| `k3ctl doctor` | this machine: GPUs by NVML, CUDA attributes in a child process, and the host around them |
| `k3ctl doctor merge FILE…` | saved reports of several hosts, judged as one group |
| `k3ctl doctor --nodes A,B,…` | the same, collected through ssh with your own configuration |
| `k3ctl doctor --from DIR` | text captures instead of a machine; each subfolder is one host |
| `k3ctl doctor --profile NAME` | only what this profile needs |
| `k3ctl doctor --explain ID` | one rule: meaning, remedy, sources |

Exit codes: 0 nothing failed · 1 something failed · 2 usage · 3 something that `--profile` needs failed.

## Severities

`FAIL` blocks what the finding names and makes the exit code 1 (3 with `--profile`). `warn` costs speed or will bite
later. `info` is worth knowing. The table is sorted worst first; `--json` lists every place on its own.

## Domains and tensor-parallel sizes

On an NVL72 tray a domain is (cluster UUID, clique id) and may reach over trays. On any other product the domain ends
at the board or the bridge, whatever UUID the driver shows; a zero UUID means this board only. A board is divided
into 1, 2, 4 or 8 GPUs. `k3_tp` is the largest size in one domain that divides K3's 96 heads, `specialized_tp` the
largest that vLLM 0.33's specialized decode path takes (8 or 16, Blackwell only).

## Multicast

Three layers, all of which must agree: the driver's attribute (capability), the environment
({", ".join(f"`{name}={value}`" for name, value in FORBIDDING.items())} forbid it), and the run-time probe.

## Probes

`--probe` copies {COPIES} × {COPY_BYTES // 2**20} MiB between every ordered pair of GPUs in a child process, checks
samples of the bytes, and compares the rate with the sum of the active links' raw rates: below {SLOW:.0%} is a
warning, below {BROKEN:.0%} a failure. It waits up to 30 s while the fabric manager is busy (CUDA 802), ends after
{COPY_LIMIT_S:.0f} s, and takes two buffers and a CUDA context on every GPU. It covers the GPUs of one host; copies
between trays are not probed.

`--probe-multicast` also allocates a multicast object over all GPUs of the host and binds memory to it (limit
{MULTICAST_LIMIT_S:.0f} s). On shared hosts this can take GPUs out of service: use it only where you own every GPU.
It is never done by default. **It has not been run on a GPU yet**: its calls are tested against a stand-in for
libcuda.

## Measuring: `--active`

Uses the GPUs, so it is asked for and never done by default. It is refused (exit 3) unless every GPU is known to be
idle: no process, no memory held, both readable. A child of the engine's Python (`K3CTL_ENGINE_PYTHON`, else the one
that runs k3ctl) does the work, and is killed with its ranks at its limit:

| measurement | what | finding |
|---|---|---|
| memory bandwidth | all visible GPUs at once for {TRIAD_S:g} s: a = b + s·c over 3 × {TRIAD_BYTES // 2**30} GiB \
(limit {TRIAD_LIMIT_S:g} s) | below {SLOW_OF_PRODUCT:.0%} of the product's rate, or {SLOW_OF_PEERS:.0%} of its \
neighbours' median |
| NCCL | all-reduce of {REDUCE_BYTES // 2**20} MiB over the GPUs of the host, {TIMED} times after {WARM} \
(limit {COLLECTIVE_LIMIT_S:g} s) | below {NVLINK_BUS_GB_S:g} GB/s bus bandwidth over NVLink, {PCIE_BUS_GB_S:g} over \
PCIe (NVSentinel's limits) |

Sums are checked. The environment is the one that `serve` would use, with `--profile` that profile's, and so are the
GPUs that it can see. NVLink multicast alone is always forbidden in it; what that changed is named. Groups over several
hosts are not measured. The result is kept in the state directory, and every later bundle of these GPUs holds it
(`active.json`): it is what their memory really does, the denominator of a roofline. The shares are ours.
**It has not been run on a GPU yet**: tested with a stand-in for the child, and on a processor over Gloo.

## Captures that `--from` reads

Recognised by content, not by name: `nvidia-smi -q`, `-L`, `nvlink -s`, `topo -m`, `topo -p2p n`,
`--query-gpu=index,… --format=csv`, `dcgmi nvlink --link-status`, `nvidia-imex-ctl -N` (table or `-j`), the kernel
log, vLLM's `collect_env`, environment files, shell transcripts (`$ command` and its output), and saved reports of
k3ctl. Tabs, terminal codes, CR LF and shifted or glued headers do not matter. A file that cannot be used becomes
one line.

## JSON

`data` of `k3ctl doctor --json` (schema `k3ctl.doctor/1`): `verdict`, `domains`, `findings`, `counts`, `profile`,
`can_run`, `notes` (inputs that could not be used), `snapshot` (`k3ctl.nvml/1`, units of NVML) and `hosts`
(`k3ctl.host/1`). A value that NVML refused is `{{"na": name, "code": nvmlReturn_t}}`. Variables that look like
credentials are left out.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    yield f"\n## Rules ({len(RULES)})\n"
    for area, title in AREAS.items():
        rules = [rule for rule in RULES.values() if rule.area is area]
        yield f"\n### {title}\n\n| rule | severity | says | blocks | remedy | holds for | sources |\n"
        yield "|---|---|---|---|---|---|---|\n"
        for rule in rules:
            yield _row(rule)


def _row(rule: Rule) -> str:
    sources = " · ".join(f"[{_short(s.url)}]({s.url}) {s.date}" for s in rule.sources)
    holds = ", ".join(filter(None, [_products(rule), str(rule.applies) if rule.applies.minimum else ""]))
    cells = [f"`{rule.id}`", rule.severity.name.lower(), rule.title, rule.blocks, rule.remedy, holds, sources]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _products(rule: Rule) -> str:
    if rule.cluster:
        return "group"
    names = {ALL_KINDS: "any host", GPU_KINDS: "GPU hosts", SWITCHED: "nvl72, hgx8"}
    return names.get(rule.kinds) or ", ".join(sorted(kind.value for kind in rule.kinds))


def _short(url: str) -> str:
    """``owner/repo#12`` for a GitHub thread, the host name otherwise."""
    parts = url.removeprefix("https://").split("/")
    if parts[0] == "github.com" and len(parts) == 5 and parts[3] in ("issues", "pull"):
        return f"{parts[1]}/{parts[2]}#{parts[4]}"
    return parts[0]
