"""Every text capture reaches its expected verdict; every shape of one capture parses to the same facts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from k3ctl.checks import Severity, evaluate, verdict
from k3ctl.checks.captures import read_folder, topology
from k3ctl.checks.captures.folder import sniff
from k3ctl.checks.captures.words import plain, size_bytes
from k3ctl.checks.merge import Gathered
from k3ctl.errors import UsageError
from k3ctl.gpus.types import Fabric, Memory

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Expect:
    """The right verdict. ``findings`` are (id, severity, place) of everything but what was not read."""

    product: str
    findings: set[tuple[str, str, str]] = field(default_factory=set)
    domain: int | None = None
    max_tp: int | None = None
    multicast: str = "unknown"


def everywhere(id_: str, severity: str, places: list[str]) -> set[tuple[str, str, str]]:
    return {(id_, severity, place) for place in places}


TRAY = [f"GPU {i} (000000{domain}:01:00.0)" for i, domain in enumerate(["08", "09", "18", "19"])]
BOARD = [f"GPU {i} (000000{i + 1}B:00.0)" for i in range(8)]

EXPECTED = {
    # nvidia-smi topo
    "topo-gb300-nvl72-tray.txt": Expect("nvl72"),
    "topo-b300-hgx8.txt": Expect("unknown", domain=8, max_tp=8),
    "topo-b300-hgx8-tabs.txt": Expect("unknown", domain=8, max_tp=8),
    "topo-b300-hgx8-nonic.txt": Expect("unknown", domain=8, max_tp=8),
    "collect-env-excerpt-b300.txt": Expect("hgx-b300", domain=8, max_tp=8),
    "topo-h200nvl-2x4-bridge.txt": Expect(
        "bridge", {("nvlink.islands", "warn", "")}, domain=4, max_tp=4, multicast="no"
    ),
    "topo-pcie-no-nvlink.txt": Expect(
        "pcie", {("nvlink.none", "info", "")}, domain=0, max_tp=0, multicast="no"
    ),
    "topo-p2p-n-ok.txt": Expect("unknown", domain=8, max_tp=8),
    "topo-p2p-n-active-links-but-no-p2p.txt": Expect(
        "unknown", {("nvlink.no-peer-access", "fail", "")}, domain=0, max_tp=0
    ),
    # links
    "nvidia-smi-nvlink-s-ok-gb300.txt": Expect("gb300-nvl72"),
    "nvidia-smi-nvlink-s-gpu2-4links-down.txt": Expect("hgx-b300", {("nvlink.links-down", "warn", "GPU 2")}),
    "dcgmi-nvlink-ok.txt": Expect("unknown"),
    "dcgmi-nvlink-all-down.txt": Expect(
        "unknown", everywhere("nvlink.links-down", "fail", [f"GPU {i}" for i in range(8)])
    ),
    # nvidia-smi -L
    "nvidia-smi-L-gb300-tray.txt": Expect("gb300-nvl72"),
    "nvidia-smi-L-b300-7of8.txt": Expect("hgx-b300", {("gpu.missing", "fail", "")}),
    "nvidia-smi-L-mig.txt": Expect("b200-sxm-partial", {("mig.enabled", "fail", "GPU 0")}),
    # nvidia-smi -q
    "smi-q-fabric-ok-gb300.txt": Expect("nvl72", domain=4, max_tp=4),
    "smi-q-fabric-ok-gb300-wide.txt": Expect("nvl72", domain=4, max_tp=4),
    "smi-q-fabric-ok-hgx-b300.txt": Expect("hgx8", domain=8, max_tp=8),
    "smi-q-fabric-old-driver-health-na.txt": Expect(
        "nvl72", everywhere("fabric.health-not-reported", "info", TRAY), domain=4, max_tp=4
    ),
    "smi-q-fabric-inprogress.txt": Expect(
        "hgx8",
        everywhere("fabric.in-progress", "fail", BOARD[:7]) | {("gpu.missing", "fail", "")},
        domain=0,
        max_tp=0,
    ),
    "smi-q-fabric-insufficient-resources.txt": Expect(
        "nvl72", everywhere("fabric.status", "fail", TRAY), domain=0, max_tp=0, multicast="no"
    ),
    "smi-q-fabric-unhealthy.txt": Expect(
        "nvl72", {("fabric.unhealthy", "fail", TRAY[2])}, domain=3, max_tp=3
    ),
    "smi-q-fabric-degraded-bandwidth.txt": Expect(
        "nvl72", {("fabric.degraded", "warn", TRAY[1])}, domain=4, max_tp=4
    ),
    "smi-q-fabric-mixed-status.txt": Expect(
        "hgx8", everywhere("fabric.status", "fail", [BOARD[3], BOARD[5]]), domain=6, max_tp=4
    ),
    "smi-q-fabric-state-notsupported-gb200.txt": Expect(
        "nvl72", everywhere("fabric.not-supported", "fail", TRAY), domain=0, max_tp=0, multicast="no"
    ),
    "smi-q-fabric-two-cliques.txt": Expect(
        "nvl72", {("fabric.cluster-mismatch", "fail", "")}, domain=2, max_tp=2
    ),
    "smi-q-fabric-notsupported-pcie.txt": Expect("pcie", domain=0, max_tp=0, multicast="no"),
    "smi-query-recovery-action.csv": Expect("unknown", {("gpu.drain-and-reset", "fail", "GPU 2")}),
    # IMEX
    "imex-ctl-up-4nodes.txt": Expect("unknown"),
    "imex-ctl-up-2nodes.json": Expect("unknown"),
    "imex-ctl-degraded-node3.txt": Expect(
        "unknown", {("imex.node-down", "fail", "IMEX node 3 (192.0.2.14)")}
    ),
    "imex-ctl-version-mismatch.txt": Expect("unknown", {("imex.version-mismatch", "fail", "")}),
    "imex-ctl-nodemap-mismatch.txt": Expect("unknown", {("imex.nodemap-mismatch", "fail", "")}),
    # the host
    "host-limits-good-gb300-tray.txt": Expect("unknown"),
    "host-limits-bad.txt": Expect(
        "unknown",
        {
            ("host.memlock", "fail", ""),
            ("host.nofile", "warn", ""),
            ("host.shm", "fail", ""),
            ("disk.space", "warn", "hf-cache"),
            ("disk.network", "warn", "hf-cache"),
            ("imex.no-channel", "warn", ""),
            ("imex.service-inactive", "warn", ""),
            ("host.name-is-loopback", "fail", ""),
        },
    ),
    "env-k3-gb300-good.env": Expect("unknown"),
    "env-site-bad.env": Expect(
        "unknown",
        {
            ("multicast.env-disabled", "warn", ""),
            ("env.mnnvl-disabled", "fail", ""),
            ("env.v1-runner", "fail", ""),
            ("env.aux-stream", "warn", ""),
            ("env.ready-timeout", "warn", ""),
            ("env.hf-home-in-home", "info", ""),
        },
        multicast="disabled-by-env",
    ),
    # kernel log
    "dmesg-xid79-and-no-xid.txt": Expect(
        "unknown", everywhere("gpu.off-bus", "fail", ["00000008:01:00.0", "00000009:01:00.0"])
    ),
    "dmesg-xid13-longctx.txt": Expect("unknown", {("xid.application", "warn", "0000001B:00:00.0")}),
}


QUERY = "environment health links memory multicast peers product"
NAMES = "driver environment fabric health links memory multicast peers"
MATRIX = "driver health links memory multicast product"
UNREAD = {
    "topo-gb300-nvl72-tray.txt": f"{MATRIX} environment fabric imex",
    "topo-b300-hgx8.txt": MATRIX,
    "topo-b300-hgx8-tabs.txt": MATRIX,
    "topo-b300-hgx8-nonic.txt": MATRIX,
    "collect-env-excerpt-b300.txt": "driver fabric fabric-manager health links memory multicast",
    "topo-h200nvl-2x4-bridge.txt": "driver health links memory product",
    "topo-pcie-no-nvlink.txt": "driver health memory product",
    "topo-p2p-n-ok.txt": MATRIX,
    "topo-p2p-n-active-links-but-no-p2p.txt": MATRIX,
    "nvidia-smi-nvlink-s-ok-gb300.txt": "driver environment fabric health imex memory multicast peers",
    "nvidia-smi-nvlink-s-gpu2-4links-down.txt": "driver environment fabric fabric-manager health memory multicast "
    "peers",
    "dcgmi-nvlink-ok.txt": "driver health memory multicast peers product",
    "dcgmi-nvlink-all-down.txt": "driver health memory multicast peers product",
    "nvidia-smi-L-gb300-tray.txt": f"{NAMES} imex",
    "nvidia-smi-L-b300-7of8.txt": f"{NAMES} fabric-manager",
    "nvidia-smi-L-mig.txt": "driver environment fabric fabric-manager health links memory multicast",
    "smi-q-fabric-ok-gb300.txt": f"{QUERY} imex",
    "smi-q-fabric-ok-hgx-b300.txt": f"{QUERY} fabric-manager",
    "smi-q-fabric-notsupported-pcie.txt": "health memory product",
    "smi-query-recovery-action.csv": "driver health links memory multicast peers product",
    "imex-ctl-up-4nodes.txt": "gpus",
    "host-limits-good-gb300-tray.txt": "gpus",
    "env-k3-gb300-good.env": "gpus",
    "dmesg-xid13-longctx.txt": "gpus",
}
"""What each kind of capture does not tell: rules ``unread.*``."""


def told(gathered: Gathered) -> set[str]:
    """Ids of the findings that say something, other than that something was not read."""
    found = evaluate(gathered.snapshot, gathered.hosts)
    return {f.id for f in found if f.severity is not Severity.UNKNOWN}


def read(name: str) -> Gathered:
    return read_folder(FIXTURES / name)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_capture_reaches_its_expected_verdict(name: str) -> None:
    gathered, expected = read(name), EXPECTED[name]
    answer = verdict(gathered.snapshot, gathered.hosts)
    everything = evaluate(gathered.snapshot, gathered.hosts)
    findings = [f for f in everything if f.severity is not Severity.UNKNOWN]

    assert gathered.notes == ()
    assert answer.product == expected.product
    assert (answer.nvlink_domain_gpus, answer.max_tp_in_domain) == (expected.domain, expected.max_tp)
    assert answer.multicast == expected.multicast
    assert {(f.id, f.severity.name.lower(), f.where) for f in findings} == expected.findings


@pytest.mark.parametrize("name", UNREAD)
def test_what_a_capture_does_not_tell_is_named(name: str) -> None:
    gathered = read(name)
    unread = {f.id for f in evaluate(gathered.snapshot, gathered.hosts) if f.severity is Severity.UNKNOWN}
    assert unread == {f"unread.{what}" for what in UNREAD[name].split()}


def test_every_capture_fixture_has_an_expected_verdict() -> None:
    kinds = ("topo-", "smi-", "nvidia-smi-", "imex-", "host-", "env-", "dmesg-", "dcgmi-", "collect-env-")
    assert {p.name for p in FIXTURES.iterdir() if p.name.startswith(kinds)} == set(EXPECTED)


def test_a_bad_site_environment_gives_six_findings_and_a_note() -> None:
    gathered = read("env-site-bad.env")
    severities = [f.severity for f in evaluate(gathered.snapshot, gathered.hosts)]
    assert len([s for s in severities if s > Severity.UNKNOWN]) == 6
    assert len([s for s in severities if s is Severity.INFO]) == 1


# topology


def matrix_of(name: str) -> topology.Matrix:
    found = topology.matrix((FIXTURES / name).read_text(encoding="utf-8"))
    assert found is not None
    return found


def test_a_tray_has_four_gpus_two_sockets_and_18_links_in_every_pair() -> None:
    matrix = matrix_of("topo-gb300-nvl72-tray.txt")
    assert (len(matrix.gpus), matrix.nics, matrix.sockets) == (4, 5, 2)
    assert set(matrix.nvlinks.values()) == {18}
    assert len(matrix.nvlinks) == 6


@pytest.mark.parametrize(
    "name", ["topo-b300-hgx8-tabs.txt", "topo-b300-hgx8-nonic.txt", "collect-env-excerpt-b300.txt"]
)
def test_every_shape_of_one_board_gives_the_same_matrix(name: str) -> None:
    plainest = matrix_of("topo-b300-hgx8.txt")
    other = matrix_of(name)
    assert other.nvlinks == plainest.nvlinks
    assert other.rest == plainest.rest


def ansi(text: str) -> str:
    head, _, rest = text.partition("\n")
    return f"\x1b[4m{head}\x1b[0m\n{rest}"


def glued(text: str) -> str:
    head, _, rest = text.partition("\n")
    return re.sub(r"\s+", "", head) + "\n" + rest


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def headless(text: str) -> str:
    return text.partition("\n")[2]


@pytest.mark.parametrize(
    "name", ["topo-b300-hgx8.txt", "topo-b300-hgx8-tabs.txt", "topo-gb300-nvl72-tray.txt"]
)
@pytest.mark.parametrize("change", [ansi, glued, crlf, headless], ids=lambda change: change.__name__)
def test_terminal_codes_and_broken_headers_do_not_change_the_matrix(name: str, change: object) -> None:
    text = (FIXTURES / name).read_text(encoding="utf-8")
    changed = topology.matrix(plain(change(text)))  # type: ignore[operator]
    assert changed == matrix_of(name)


# several captures of one host


def test_captures_of_one_host_complete_each_other(tmp_path: Path) -> None:
    for name in ("nvidia-smi-L-gb300-tray.txt", "smi-q-fabric-ok-gb300.txt", "topo-gb300-nvl72-tray.txt"):
        (tmp_path / name).write_bytes((FIXTURES / name).read_bytes())
    gathered = read_folder(tmp_path)
    answer = verdict(gathered.snapshot)
    assert len(gathered.snapshot.nodes) == 1
    assert (answer.product, answer.max_tp_in_domain) == ("gb300-nvl72", 4)
    assert told(gathered) == set()


def test_each_subfolder_is_a_host(tmp_path: Path) -> None:
    for tray in ("tray0", "tray1"):
        (tmp_path / tray).mkdir()
        target = tmp_path / tray / "q.txt"
        target.write_bytes((FIXTURES / "smi-q-fabric-ok-gb300.txt").read_bytes())
    gathered = read_folder(tmp_path)
    assert [node.hostname for node in gathered.snapshot.nodes] == ["tray0", "tray1"]
    assert verdict(gathered.snapshot).max_tp_in_domain == 8


def test_a_transcript_holds_the_output_of_other_tools_too(tmp_path: Path) -> None:
    listing = (FIXTURES / "nvidia-smi-L-b300-7of8.txt").read_text(encoding="utf-8")
    path = tmp_path / "session.txt"
    path.write_text(f"$ ulimit -n\n1024\n$ nvidia-smi -L\n{listing}", encoding="utf-8")
    gathered = read_folder(path)
    assert told(gathered) == {"gpu.missing", "host.nofile"}


def test_a_whole_query_tells_name_memory_mig_and_recovery(tmp_path: Path) -> None:
    lines = [
        "==============NVSMI LOG==============",
        "Driver Version                            : 580.105.08",
        "CUDA Version                              : 13.0",
        "Attached GPUs                             : 1",
        "GPU 00000000:1B:00.0",
        "    Product Name                          : NVIDIA B300 SXM6 AC",
        "    GPU UUID                              : GPU-1",
        "    MIG Mode",
        "        Current                           : Enabled",
        "        Pending                           : Enabled",
        "    GPU Recovery Action                   : GPU Reset",
        "    FB Memory Usage",
        "        Total                             : 275040 MiB",
        "        Used                              : 4 MiB",
        "    BAR1 Memory Usage",
        "        Total                             : 1 MiB",
        "    Processes                             : None",
    ]
    path = tmp_path / "q.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    node = read_folder(path).snapshot.nodes[0]
    (gpu,) = node.gpus
    assert (node.nvml.driver, node.nvml.cuda_driver) == ("580.105.08", 13000)
    assert (gpu.name, gpu.in_mig_mode, gpu.recovery_action) == ("NVIDIA B300 SXM6 AC", True, 1)
    assert gpu.memory == Memory(275040 * 2**20, 275036 * 2**20, 4 * 2**20)


# bad input


def test_words_of_a_newer_driver_are_shown_and_the_rest_is_judged(tmp_path: Path) -> None:
    text = (FIXTURES / "smi-q-fabric-unhealthy.txt").read_text(encoding="utf-8")
    path = tmp_path / "q.txt"
    path.write_text(text.replace(": Completed", ": Warming Up", 1), encoding="utf-8")
    gathered = read_folder(path)
    assert any("Warming Up" in note for note in gathered.notes)
    ids = told(gathered)
    assert {"fabric.unknown-state", "fabric.unhealthy"} <= ids


def test_an_unknown_recovery_action_is_a_finding_and_its_word_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("index, gpu_recovery_action\n0, Polish the Pins\n", encoding="utf-8")
    gathered = read_folder(path)
    assert any("Polish the Pins" in note for note in gathered.notes)
    assert told(gathered) == {"gpu.recovery-action"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("noise.txt", b"the quick brown fox\n", "not a capture that k3ctl knows"),
        ("empty.txt", b"", "not a capture that k3ctl knows"),
        ("binary.txt", bytes(range(256)) * 10, "not a capture that k3ctl knows"),
        ("cut.json", b'{"schema": "k3ctl.nvml/1", "nodes": [', "broken JSON"),
        ("other.json", b'{"a": 1}', "no k3ctl.nvml/1 snapshot"),
        ("deep.json", b'{"a":' + b"[" * 100_000, "broken JSON"),
        ("imex.json", b'{"nodes": [1, 2]}', "no `nodes` in the IMEX answer"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_a_file_that_cannot_be_used_becomes_one_line_and_the_rest_is_judged(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good.txt").write_bytes((FIXTURES / "smi-q-fabric-unhealthy.txt").read_bytes())
    gathered = read_folder(tmp_path)
    assert len(gathered.notes) == 1
    assert name in gathered.notes[0]
    assert said in gathered.notes[0]
    assert "\n" not in gathered.notes[0]
    assert told(gathered) == {"fabric.unhealthy"}


def test_a_50_mb_file_is_left_out_at_once(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(50_000_000)
    (tmp_path / "good.txt").write_bytes((FIXTURES / "smi-q-fabric-ok-gb300.txt").read_bytes())
    gathered = read_folder(tmp_path)
    assert gathered.notes == ("huge.txt: it is larger than 16 MiB",)


def test_invalid_utf8_inside_a_capture_does_not_stop_it(tmp_path: Path) -> None:
    content = (
        (FIXTURES / "smi-q-fabric-unhealthy.txt").read_bytes().replace(b"NVSMI LOG", b"NVSMI LOG \xff\xfe")
    )
    (tmp_path / "q.txt").write_bytes(content)
    gathered = read_folder(tmp_path)
    assert told(gathered) == {"fabric.unhealthy"}


def test_a_folder_without_any_capture_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "noise.txt").write_text("hello\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no capture that can be used"):
        read_folder(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_folder(tmp_path / "absent")


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 0.95])
def test_a_truncated_capture_never_raises_anything_but_a_clear_error(name: str, share: float) -> None:
    text = (FIXTURES / name).read_text(encoding="utf-8")
    try:
        sniff(plain(text[: int(len(text) * share)]))
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64M", 64 * 2**20), ("1.8T", int(1.8 * 2**40)), ("275040 MiB", 275040 * 2**20), ("0", 0), ("-", None)],
)
def test_sizes_are_powers_of_1024(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


def test_the_fabric_block_is_read_with_any_padding() -> None:
    blocks = []
    for name in ("smi-q-fabric-ok-gb300.txt", "smi-q-fabric-ok-gb300-wide.txt"):
        fabric = read(name).snapshot.nodes[0].gpus[0].fabric
        assert isinstance(fabric, Fabric)
        blocks.append(
            (fabric.state, fabric.status, fabric.clique_id, fabric.cluster_uuid, fabric.health_summary)
        )
    assert blocks[0] == blocks[1] == (3, 0, 32766, "5f0c0de0-1234-4abc-9def-00c0ffee0001", 1)
