"""Every recorded log is named for what happened in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.triage.scan import scan

FIXTURES = Path(__file__).parents[1] / "fixtures"

# file → (rule of the first cause, or of the observation; a text the operator must read in it)
EXPECTED = {
    "cuda-log-802-fabric-not-ready.txt": ("fabric-not-ready", "k3ctl doctor"),
    "cuda-log-803-driver-mismatch.txt": ("driver-mismatch", "LD_LIBRARY_PATH"),
    "dmesg-xid13-longctx.txt": ("xid-13", "VLLM::Worker_TP3"),
    "dmesg-xid79-and-no-xid.txt": ("gpu-off-bus", "drain the node"),
    "nccl-log-dmabuf-524.txt": ("dmabuf", "NCCL_DMABUF_ENABLE=0"),
    "nccl-log-mnnvl-good.txt": ("mnnvl-on", "clique of 16 = all 16 ranks"),
    "nccl-log-mnnvl-off-cumem0.txt": ("mnnvl-off", "NCCL_CUMEM_ENABLE"),
    "nccl-log-nvls-401.txt": ("fabric-not-ready", "fabric"),
    "nccl-log-nvls-hang.txt": ("nvls-hang", "2.28.9"),
    "nvml-log-gpu-lost.txt": ("gpu-lost", "00000008:01:00.0"),
    "nvml-log-version-mismatch.txt": ("nvml-mismatch", "reboot"),
    "vllm-log-autotune-slow-not-hang.txt": ("slow-not-hung", "from 11 to 13 of 22"),
    "vllm-log-c16-k7-outside-64rows.txt": (
        "rows-over-limit",
        "97% of the decode steps: more than 64 rows|num_speculative_tokens=3 (16 × 4 = 64 rows)",
    ),
    "vllm-log-capture-oom.txt": ("capture-oom", "lower gpu_memory_utilization"),
    "vllm-log-disk-full.txt": ("disk-full", "/cache/hub"),
    "vllm-log-dspark-hopper-nightly-assert.txt": ("dspark-nightly-assert", "released vLLM 0.33.0"),
    "vllm-log-dspark-nonetype-old-build.txt": ("dspark-old-build", "0.27.1 or newer"),
    "vllm-log-free-memory-orphan.txt": ("gpu-memory-held", "kill 3117|102 GiB"),
    "vllm-log-gloo-loopback.txt": ("gloo-loopback", "host name resolve"),
    "vllm-log-ima-prefix-caching.txt": ("prefix-cache-illegal-access", "enable_prefix_caching=false"),
    "vllm-log-h200-core-killed.txt": ("process-killed", "engine core ended|dmesg"),
    "vllm-log-h200-worker-killed.txt": ("process-killed", "Worker proc VllmWorker-0|dmesg"),
    "vllm-log-iteration-details.txt": ("step-times", "10.2 ms at c1|20.8 ms at c16"),
    "vllm-log-kda-prefill-unsupported.txt": ("kda-prefill-unsupported", "kda_prefill_backend"),
    "vllm-log-kv-too-small.txt": ("kv-too-small", "max_model_len=688128|13.71 GiB needed, 9.12 GiB there"),
    "vllm-log-mamba-blocks-vs-maxseqs.txt": ("mamba-blocks", "max_num_seqs=611"),
    "vllm-log-memlock.txt": ("memlock", "ulimit -l"),
    "vllm-log-mig-uuid.txt": ("mig-enabled", "MIG-aaaaaaaa"),
    "vllm-log-mnnvl-fd-exchange-ib-only.txt": ("no-shared-nvlink-domain", "fuse_allreduce_rms=false"),
    "vllm-log-no-multicast-symm-mem.txt": ("no-multicast", "k3ctl doctor"),
    "vllm-log-no-multicast.txt": ("no-multicast", "k3ctl doctor"),
    "vllm-log-ok-b300-tp8-specialized.txt": (
        "specialized-consistent",
        "consistent with specialized|no proof",
    ),
    "vllm-log-ok-gb300-tp16-specialized.txt": (
        "specialized-consistent",
        "consistent with specialized|no proof",
    ),
    "vllm-log-piecewise-downgrade-after-check.txt": ("graph-downgrade", "TritonMLABackend|PIECEWISE"),
    "vllm-log-port-in-use.txt": ("port-in-use", "--port 0"),
    "vllm-log-ready-timeout.txt": (
        "ready-timeout",
        "too slow, not broken|30/96|VLLM_ENGINE_READY_TIMEOUT_S=2000",
    ),
    "vllm-log-rust-client-rejects-flag.txt": ("rust-client-flag", "--trust-remote-code"),
    "vllm-log-shared-experts-assert.txt": ("shared-experts-assert", "VLLM_DISABLE_SHARED_EXPERTS_STREAM=1"),
    "vllm-log-shm-broadcast-real-hang.txt": ("hung", "20 warnings over 19 minutes|py-spy"),
    "vllm-log-shm-too-small.txt": ("shm-too-small", "16 GiB"),
    "vllm-log-specialized-reject-bf16-ssm.txt": ("specialized-refused-15", "mamba_ssm_cache_dtype"),
    "vllm-log-specialized-reject-dcp8-tp16.txt": ("specialized-refused-7", "decode_context_parallel_size"),
    "vllm-log-specialized-reject-eager.txt": ("specialized-refused-12", "enforce_eager"),
    "vllm-log-specialized-reject-hopper.txt": ("specialized-refused-1", "decode_backend=auto"),
    "vllm-log-specialized-reject-k8.txt": ("specialized-refused-17", "num_speculative_tokens=7"),
    "vllm-log-specialized-reject-replayssm.txt": ("specialized-refused-16", "use_replayssm"),
    "vllm-log-stall-sm100-throughput0.txt": ("stalled", "33 requests running, 0 tokens/s for 170 s"),
    "vllm-log-tailfusion-not-supported-tp.txt": ("tail-fusion-tp", "TP=4|8 or 16"),
    "vllm-log-trust-remote-code.txt": ("trust-remote-code", "trust_remote_code"),
    "vllm-log-v1-runner-forced-dspark.txt": ("v1-runner-forced", "unset VLLM_USE_V2_MODEL_RUNNER"),
    "vllm-log-v1-runner-forced-nospec.txt": ("specialized-refused-10", "unset VLLM_USE_V2_MODEL_RUNNER"),
    "vllm-log-zmq-port-in-use.txt": ("internal-port-in-use", "tcp://127.0.0.1:51021"),
}
OBSERVATIONS = {"mnnvl-on", "slow-not-hung", "specialized-consistent", "step-times"}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recorded_log_is_named_for_what_happened_in_it(name):
    rule, texts = EXPECTED[name]
    report = scan([FIXTURES / name])
    main = report.incidents[0]
    assert main.rule.id == rule
    told = f"{main.title}\n{main.cause}\n{main.action}"
    for text in texts.split("|"):
        assert text in told
    assert "?" not in main.title, "a placeholder stayed empty"
    assert (report.first_cause is None) == (rule in OBSERVATIONS)


def test_every_recorded_log_has_an_expectation():
    kinds = ("vllm-log-*", "nccl-log-*", "cuda-log-*", "nvml-log-*", "dmesg-*")
    assert {path.name for kind in kinds for path in FIXTURES.glob(kind)} == set(EXPECTED)


@pytest.mark.parametrize(
    ("name", "count", "ranks"),
    [
        ("vllm-log-dspark-nonetype-old-build.txt", 16, 16),
        ("vllm-log-shared-experts-assert.txt", 8, 8),
        ("vllm-log-ima-prefix-caching.txt", 3, 3),
        ("nccl-log-nvls-hang.txt", 8, 8),
        ("nccl-log-mnnvl-off-cumem0.txt", 16, 16),
    ],
)
def test_what_all_ranks_report_is_one_incident(name, count, ranks):
    main = scan([FIXTURES / name]).incidents[0]
    assert (main.count, len(main.who)) == (count, ranks)


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("vllm-log-mnnvl-fd-exchange-ib-only.txt", "gpu-oom"),
        ("vllm-log-memlock.txt", "nccl-error"),
        ("vllm-log-gloo-loopback.txt", "gloo-mesh"),
        ("vllm-log-mig-uuid.txt", "model-not-inspected"),
        ("vllm-log-no-multicast.txt", "core-init-failed"),
        ("vllm-log-specialized-reject-k8.txt", "core-init-failed"),
        ("vllm-log-ima-prefix-caching.txt", "engine-dead"),
        ("vllm-log-piecewise-downgrade-after-check.txt", "decode-not-full"),
    ],
)
def test_a_consequence_is_listed_under_its_cause(name, consequence):
    report = scan([FIXTURES / name])
    other = next(incident for incident in report.incidents if incident.rule.id == consequence)
    assert other.because == report.incidents[0].rule.id


def test_a_failure_while_serving_is_told_from_one_while_starting():
    assert scan([FIXTURES / "vllm-log-shared-experts-assert.txt"]).served
    assert not scan([FIXTURES / "vllm-log-capture-oom.txt"]).served
