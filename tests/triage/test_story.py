# ruff: noqa: E501 (log lines are as long as they are)
"""Which incident is the cause, tried on stories that are turned round: other ranks, other order, other neighbours."""

from __future__ import annotations

import itertools

import pytest

from k3ctl.triage.scan import scan, scan_lines
from tests.triage.logs import END, FAILED_START, api, core, raised, start, worker

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.78 GiB. GPU 5 has 1 GiB of which 1.60 GiB is free."
NCCL = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
WATCHDOG = (
    "[rank{rank}]:[E920 08:05:0{second}.000 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
STORE = (
    "[rank{rank}]:[W920 08:05:0{second}.93 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=1, addr=[n1]:5, "
    "remote=[n0]:40027): Failed to recv, got 0 bytes. Connection was likely closed."
)


def first(lines: list[str]) -> str:
    return scan_lines([*start(served=True), *lines], whole=True).incidents[0].rule.id


CAUSES = {
    "gpu-oom": lambda rank, at: raised(rank, OOM, at),
    "ecc-error": lambda rank, at: raised(
        rank, "RuntimeError: CUDA error: uncorrectable ECC error encountered", at
    ),
    "unknown-error": lambda rank, at: raised(rank, "KeyError: 'weird'", at),
    "process-limit": lambda rank, at: raised(rank, "RuntimeError: can't start new thread", at),
}
SYMPTOMS = {
    "nccl-error": lambda rank, second: raised(rank, NCCL, f"08:05:0{second}"),
    "head-gone": lambda rank, second: [STORE.format(rank=rank, second=second)],
    "engine-dead": lambda _, __: END,
    "teardown": lambda rank, second: raised(rank, "EOFError", f"08:05:0{second}"),
    "watchdog": lambda rank, second: [
        f"[rank{rank}]:[E920 08:05:0{second}.29 ProcessGroupNCCL.cpp:2068] [Rank {rank}] Process group watchdog thread terminated "
        "with exception: NCCL error"
    ],
}


@pytest.mark.parametrize(("cause", "symptom"), itertools.product(CAUSES, SYMPTOMS))
@pytest.mark.parametrize("rank", [0, 9])
def test_a_symptom_never_wins_over_a_cause_on_another_rank(cause, symptom, rank):
    one, other = CAUSES[cause](rank, "08:05:03"), SYMPTOMS[symptom](3, 2)
    assert first([*other, *one]) == cause, "the symptom was logged a second earlier"
    later = SYMPTOMS[symptom](3, 4)
    assert first([*one, *later]) == cause


@pytest.mark.parametrize("cause", CAUSES)
def test_a_time_out_follows_from_the_rank_that_failed_before_it(cause):
    watchdogs = [WATCHDOG.format(rank=rank, second=9) for rank in (0, 1, 3)]
    report = scan_lines([*start(served=True), *CAUSES[cause](2, "08:05:01"), *watchdogs, *END], whole=True)
    assert report.incidents[0].rule.id == cause
    assert next(i for i in report.incidents if i.rule.id == "collective-timeout").because == cause


def test_what_goes_down_after_a_time_out_is_no_cause_of_it():
    watchdogs = [WATCHDOG.format(rank=rank, second=1) for rank in (0, 1, 3, 4, 5, 6, 7)]
    lines = [*watchdogs, *raised(4, "RuntimeError: cancelled by the others", "08:05:30"), *END]
    report = scan_lines([*start(served=True), *lines], whole=True)
    assert report.incidents[0].rule.id == "collective-timeout"
    assert "rank 2 is silent" in report.incidents[0].title


@pytest.mark.parametrize("silent", [0, 3, 7])
def test_the_silent_rank_is_named_whoever_it_is(silent):
    ranks = [rank for rank in (5, 0, 7, 2, 1, 6, 3, 4) if rank != silent]
    title = (
        scan_lines([*start(), *(WATCHDOG.format(rank=rank, second=1) for rank in ranks)]).incidents[0].title
    )
    assert f"rank {silent} is silent" in title


def test_when_no_rank_is_silent_none_is_accused():
    lines = [WATCHDOG.format(rank=rank, second=1) for rank in range(8)]
    assert "all ranks report it" in scan_lines([*start(), *lines]).incidents[0].title


def test_the_order_of_the_ranks_does_not_matter():
    blocks = [raised(rank, OOM if rank == 6 else NCCL) for rank in (1, 4, 6)]
    for order in itertools.permutations(blocks):
        main = scan_lines([*start(), *itertools.chain(*order)]).incidents[0]
        assert (main.rule.id, main.who, main.ranks) == ("gpu-oom", {"Worker_TP6"}, {6})


def test_removing_the_cause_leaves_the_symptom_and_never_an_all_clear():
    whole = [*raised(3, NCCL), *raised(9, OOM), *END]
    assert first(whole) == "gpu-oom"
    assert first([*raised(3, NCCL), *END]) == "nccl-error"
    assert first(END) == "engine-dead"


def test_the_kernel_log_is_the_root_of_all_that_the_engine_says(tmp_path):
    kernel, engine = tmp_path / "kernel.log", tmp_path / "engine.log"
    kernel.write_text("[99.1] NVRM: Xid (PCI:0000:4b:00): 48, pid=403, name=VLLM::Worker_TP3, DBE\n")
    for lines in (raised(3, "KeyError: 'x'"), raised(3, NCCL), [WATCHDOG.format(rank=1, second=1)], END):
        engine.write_text("\n".join([*start(served=True), worker(3, "x", level="INFO"), *lines]) + "\n")
        for files in ([kernel, engine], [engine, kernel]):
            report = scan(files)
            assert report.incidents[0].rule.id == "gpu-hardware"
            assert all(i.because for i in report.incidents[1:] if not i.unknown and i.rule.role != "cause")


def test_a_process_that_the_kernel_names_is_called_by_its_rank():
    killed = "[99.1] Memory cgroup out of memory: Killed process 405 (VLLM::Worker_TP) total-vm:1kB, anon-rss:1048576kB"
    report = scan_lines([*start(), worker(5, "hello", level="INFO"), killed], whole=True)
    assert "VLLM::Worker_TP = Worker_TP5" in report.incidents[0].title


def test_a_software_xid_only_confirms_what_the_engine_says():
    xid = "[99.1] NVRM: Xid (PCI:0000:4b:00): 31, pid=402, name=VLLM::Worker_TP2, MMU Fault: ENGINE GRAPHICS"
    illegal = raised(2, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    report = scan_lines([xid, *start({"enable_prefix_caching": False}, served=True), *illegal], whole=True)
    assert [i.rule.id for i in report.incidents[:2]] == ["illegal-access", "gpu-software-xid"]
    assert report.incidents[1].because == "illegal-access"


def test_a_stop_after_a_failure_only_cleared_away():
    stop = core("[shutdown] EngineCore: trigger received signal=SIGTERM", "08:05:20")
    assert first([*raised(2, OOM), stop, *END]) == "gpu-oom"
    assert first([stop, *raised(2, "RuntimeError: torn down", "08:05:30"), *END]) == "stopped-outside"


def test_an_orderly_stop_is_no_incident():
    lines = [
        "INFO:     Shutting down",
        core("[shutdown] EngineCore: trigger received signal=SIGTERM", "09:00:00"),
    ]
    report = scan_lines([*start(served=True), *lines], whole=True)
    assert report.first_cause is None and report.incidents[0].rule.id == "stopped-in-order"


# advice that a rule must not give, because this log itself rules it out
@pytest.mark.parametrize(
    ("changes", "error", "never"),
    [
        (
            {"enable_prefix_caching": False},
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "enable_prefix",
        ),
        ({"kv_cache_memory_bytes": 9}, OOM, "lower gpu_memory_utilization"),
        (
            {"trust_remote_code": True},
            "ValueError: x contains custom code which must be executed",
            "for the server",
        ),
    ],
)
def test_a_rule_looks_before_it_speaks(changes, error, never):
    told = scan_lines([*start(changes, served=True), *raised(1, error)]).incidents[0]
    assert never not in told.action
    assert told.rule.id != "unknown-error"


def test_nccl_of_the_advice_is_not_advised_again():
    hang = [f"n:{rank}:1 [{rank}] NCCL INFO NVLS tuning: nChannels 24" for rank in range(8)]
    old, new = (
        scan_lines([f"n:0:1 [0] NCCL INFO NCCL version {version}+cuda13.0", *hang]).incidents[0]
        for version in ("2.28.9", "2.30.7")
    )
    assert (old.rule.id, new.rule.id) == ("nvls-hang-old-nccl", "nvls-hang")
    assert "load NCCL 2.28.9" in new.action and "load NCCL" not in old.action


def test_an_nccl_warning_is_the_cause_text_of_an_nccl_error():
    warning = "n1:500:700 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer with status=12 opcode=0"
    report = scan_lines([*start(), warning, *raised(0, NCCL), *FAILED_START], whole=True)
    assert "status=12" in report.incidents[0].title
    assert report.incidents[1].because == "nccl-warning"
    remark = scan_lines([*start(served=True), warning], whole=True)
    assert remark.first_cause is None and remark.incidents[0].rule.id == "nccl-remark"


@pytest.mark.parametrize(
    ("below", "source", "told"),
    [
        ("ptxas fatal   : something quite new", "", "ptxas fatal"),
        (
            "  Value error, block_size must be even [type=value_error, input_value=3]",
            "",
            "block_size must be even",
        ),
    ],
)
def test_the_line_that_says_why_is_shown_with_an_unknown_error(below, source, told):
    lines = raised(
        3,
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n{below}",
        source=source,
    )
    main = scan_lines([*start(), *lines], whole=True).incidents[0]
    assert main.rule.id == "unknown-error" and told in main.title
    assert any(told in line for line in main.evidence)


def test_a_bare_assertion_shows_what_it_asserted():
    main = scan_lines(
        [*start(), *raised(2, "AssertionError", source="assert left.shape == right.shape")]
    ).incidents[0]
    assert main.title == "AssertionError: assert left.shape == right.shape"


def test_the_innermost_process_speaks_first():
    outer = api("RuntimeError: something failed", "08:05:00", "ERROR")
    inner = raised(3, "KeyError: 'why'", "08:05:01")
    for lines in ([outer, *inner], [*inner, outer]):
        assert scan_lines([*start(), *lines]).incidents[0].title == "KeyError: 'why'"


def test_a_line_at_error_level_without_an_exception_is_an_error_too():
    report = scan_lines([*start(served=True), worker(4, "the thing is broken")], whole=True)
    assert (report.incidents[0].rule.id, report.first_cause is not None) == ("unknown-report", True)


def test_a_worker_nodes_log_without_a_fault_is_no_all_clear_for_the_server():
    lines = [
        "(Headless pid=12) INFO 09-20 08:00:01 [a.py:1] version 0.33.0",
        worker(8, "Model loading took 199.4 GiB memory and 402.1 seconds", level="INFO"),
    ]
    report = scan_lines(lines, whole=True)
    assert report.incidents[0].rule.id == "worker-node-only" and report.first_cause is None


def test_a_server_that_answers_is_an_all_clear():
    assert scan_lines(start(served=True), whole=True).incidents == ()
    assert (
        scan_lines([*start(), 'INFO: 127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'], whole=True).incidents
        == ()
    )


def test_k3ctls_own_plugin_orders_the_stages_without_pynccl():
    backends = "Using ['SYMM_MEM'] all-reduce backends (in dispatch order) for group 'tp:0' out of potential backends: ['PYNCCL']."
    lines = [*start({"pipeline_parallel_size": 2}, served=True), worker(0, backends, level="INFO")]
    plugin = core("Loading plugin k3_runtime")
    assert scan_lines(lines).incidents[0].rule.id == "pynccl-off-pipeline"
    assert scan_lines([plugin, *lines]).incidents[0].rule.id == "pynccl-off"


def test_what_a_rule_explains_wins_over_an_unknown_error_a_second_earlier():
    unknown = raised(3, "RuntimeError: my peer said something strange", "08:05:00")
    assert first([*unknown, *raised(9, OOM, "08:05:01")]) == "gpu-oom"
    assert first([*unknown, *raised(9, OOM, "08:09:01")]) == "unknown-error", (
        "minutes later it is another story"
    )
