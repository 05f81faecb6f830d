"""A command in a capture that failed is evidence; a matrix of any size and glue tells the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.checks import evaluate, verdict
from k3ctl.checks.captures import read_folder


def told(tmp_path: Path, text: str) -> set[str]:
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    gathered = read_folder(tmp_path)
    return {f.id for f in evaluate(gathered.snapshot, gathered.hosts) if not f.id.startswith("unread.")}


@pytest.mark.parametrize(
    "prompt", ["", "$ nvidia-smi\n", "root@node:~# nvidia-smi -q\n", "$ sudo nvidia-smi\n"]
)
@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95",
            "library-mismatch",
        ),
        ("Failed to initialize NVML: Unknown Error", "nvml-error"),
        ("Failed to initialize NVML: Driver Not Loaded", "not-loaded"),
        ("Failed to initialize NVML: Insufficient Permissions", "nvml-error"),
        ("Failed to initialize NVML: Something Of 2031", "nvml-error"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure …",
            "not-loaded",
        ),
        ("No devices were found", "nvml-error"),
    ],
)
def test_a_failed_nvidia_smi_is_a_failure(tmp_path: Path, prompt: str, said: str, rule: str) -> None:
    assert told(tmp_path, f"{prompt}{said}\n") == {f"driver.{rule}"}


@pytest.mark.parametrize("bus", ["GPU0000:3B:00.0", "GPU 0000:3B:00.0", "GPU3: 0000:3B:00.0"])
def test_a_gpu_without_a_handle_is_named_by_its_address(tmp_path: Path, bus: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"$ nvidia-smi\nUnable to determine the device handle for {bus}: Unknown Error\n")
    gathered = read_folder(path)
    (found,) = [f for f in evaluate(gathered.snapshot, gathered.hosts) if f.id == "gpu.off-bus"]
    assert found.where == "00000000:3B:00.0"


def test_a_container_whose_device_files_are_there_has_lost_its_gpus(tmp_path: Path) -> None:
    text = "$ nvidia-smi\nFailed to initialize NVML: Unknown Error\n$ ls -l /dev/nvidia0\ncrw 1 root /dev/nvidia0\n"
    assert told(tmp_path, text) == {"driver.container-lost-gpus"}


@pytest.mark.parametrize(
    ("answer", "failed"), [("READY", False), ("-3", True), ("INITIALIZING", True), ("", True)]
)
def test_what_imex_answers_goes_before_its_service(tmp_path: Path, answer: str, failed: bool) -> None:
    text = f"$ nvidia-imex-ctl -q\n{answer}\n$ systemctl is-active nvidia-imex\nactive\n"
    assert ("imex.not-ready" in told(tmp_path, text)) == failed


def matrix(size: int, glue: str, nics: int = 2, alone: int | None = None) -> str:
    rows = []
    for row in range(size):
        cells = [" X " if row == c else "SYS" if alone in (row, c) else "NV18" for c in range(size)]
        rows.append(f"GPU{row}\t{glue.join([*cells, *['NODE'] * nics])}\t0-31\t0\tN/A")
    head = "\t".join([*(f"GPU{i}" for i in range(size)), *(f"NIC{i}" for i in range(nics)), "CPU Affinity"])
    return f"\t{head}\n" + "\n".join(rows) + "\n"


@pytest.mark.parametrize("size", [2, 4, 8, 16, 72])
@pytest.mark.parametrize("glue", ["\t", "  ", ""], ids=["tabs", "spaces", "glued"])
def test_a_matrix_of_any_size_and_glue(tmp_path: Path, size: int, glue: str) -> None:
    (tmp_path / "a.txt").write_text(matrix(size, glue), encoding="utf-8")
    gathered = read_folder(tmp_path)
    found = verdict(gathered.snapshot)
    (node,) = gathered.snapshot.nodes
    assert (found.product, found.nvlink_domain_gpus, found.gpu_count) == ("unknown", size, size)
    assert [nic.name for nic in node.nics] == ["NIC0", "NIC1"]
    assert (node.gpus[0].cpu_affinity, node.gpus[0].nic_paths["NIC1"]) == ("0-31", "NODE")


@pytest.mark.parametrize(("size", "missing"), [(4, False), (7, True), (6, True), (3, True), (8, False)])
def test_a_board_with_an_odd_number_of_gpus_lacks_some(tmp_path: Path, size: int, missing: bool) -> None:
    assert ("gpu.missing" in told(tmp_path, matrix(size, "\t"))) == missing


@pytest.mark.parametrize("alone", [0, 3, 7])
def test_a_gpu_that_nvlink_does_not_reach_is_named(tmp_path: Path, alone: int) -> None:
    assert told(tmp_path, matrix(8, "\t", alone=alone)) == {"nvlink.odd-gpu"}
