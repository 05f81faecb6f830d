"""Starting: arguments, versions, plugins, ports, time limits."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 3, 31)

RULES = (
    TriageRule(
        id="ready-timeout",
        title="too slow, not broken: loading reached {done}/{total} when the time limit of {limit} s ended",
        cause="no process failed (the list of failed ones is empty); the API server gave up waiting",
        action="set VLLM_ENGINE_READY_TIMEOUT_S={needed} or more, or load from faster storage",
        source="https://github.com/vllm-project/vllm/issues/48031, "
        "https://github.com/vllm-project/vllm/pull/35616",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Timed out waiting for engine core processes to start.*Waited (?P<limit>\d+)s",),
        leads_to=("core-init-failed",),
    ),
    TriageRule(
        id="dspark-old-build",
        title="this vLLM is too old for DSpark with Kimi K3",
        cause="the draft proposer looks for weights that Kimi K3's DSpark does not have in this build",
        action="install vLLM 0.27.1 or newer (0.33.0 for the specialized decode); trust the package, not "
        "an image tag",
        source="https://github.com/ai-dynamo/dynamo/issues/12843",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(r"'NoneType' object has no attribute 'weight'",),
        vllm="<0.27.1",
    ),
    TriageRule(
        id="dspark-nightly-assert",
        title="this build of vLLM has no DSpark on this GPU",
        cause="a nightly took the DSpark draft for DFlash and asserts its method",
        action="install a released vLLM 0.33.0, or turn speculation off",
        source="https://github.com/vllm-project/vllm/issues/50851",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"assert self\.method == \"dflash\"",),
    ),
    TriageRule(
        id="trust-remote-code",
        title="the model's own code was not allowed to run",
        cause="`trust_remote_code` is missing on this side; server and benchmark client need it both",
        action="set trust_remote_code for the server, and give the client the same tokenizer settings",
        source="https://github.com/vllm-project/tpu-inference/pull/2927",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(r"contains custom code which must be executed",),
        instead=((("remote-code-allowed",), "trust-remote-code-client"),),
        unlike="`trust-remote-code-client`: the server's arguments allow it already",
    ),
    TriageRule(
        id="trust-remote-code-client",
        title="the model's own code was not allowed to run, although the server's arguments allow it",
        cause="`trust_remote_code` is set for the server; the one that lacks it is the benchmark client, the "
        "tokenizer's process "
        "or the draft model",
        action="give that side trust_remote_code too; the lines above the error name the process",
        source="https://github.com/vllm-project/tpu-inference/pull/2927",
        checked=date(2026, 11, 30),
        expires=date(2027, 9, 30),
        unlike="`trust-remote-code`: the server lacks it, or the log does not say",
    ),
    TriageRule(
        id="rust-client-flag",
        title="`vllm bench serve` is the Rust client here and does not know `{flag}`",
        cause="newer builds start a Rust benchmark client that refuses options of the Python one",
        action="drop `{flag}`, or run the benchmark with `k3ctl bench`",
        source="https://github.com/SemiAnalysisAI/InferenceX/blob/main/perf-changelog.yaml",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"error: unexpected argument '(?P<flag>--[\w-]+)' found",),
    ),
    TriageRule(
        id="unknown-argument",
        title="this vLLM does not know the argument {flag}",
        cause="arguments come and go between versions",
        action="drop it from the profile; `k3ctl plan` checks arguments before a start",
        source="https://github.com/SemiAnalysisAI/InferenceX/pull/2392",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(r"error: unrecognized arguments: (?P<flag>.+)",),
    ),
    TriageRule(
        id="port-in-use",
        title="the API port is taken",
        cause="another process listens on the port that the server wants",
        action="stop that process (`k3ctl ps`, or `ss -ltnp`), or take a free port with `--port 0`",
        source="https://github.com/vllm-project/vllm/issues/7196",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(r"\[Errno 98\].*[Aa]ddress already in use",),
    ),
    TriageRule(
        id="internal-port-in-use",
        title="an internal socket is taken: {address}",
        cause="vLLM picked a port for its own processes that somebody took first; the API port is fine",
        action="start again; if it repeats, set VLLM_PORT to the start of a free range",
        source="https://github.com/vllm-project/vllm/issues/7196",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(
            r"ZMQError: Address already in use \(addr='(?P<address>[^']+)'\)",
            r"ZMQError: Address already in use",
        ),
    ),
    TriageRule(
        id="plugin-not-loaded",
        title="vLLM could not load the plugin {plugin}",
        cause="it goes on without the plugin and fails later, or serves without what the plugin brings",
        action="read the traceback below that line; reinstall k3ctl into the engine's environment",
        source="vLLM 0.33.0, plugins/__init__.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Failed to (?:load|instantiate endpoint) plugin (?P<plugin>k3\w*)",),
    ),
    TriageRule(
        id="package-missing",
        title="the engine's Python lacks the package {package}",
        cause="an installation that was interrupted, or that left out what this configuration needs",
        action="run `make setup` (no GPU) or `make setup-gpu` again: both are safe to repeat",
        source="vLLM 0.33.0, requirements of its package",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(r"^ModuleNotFoundError: No module named '(?P<package>[\w.]+)'",),
    ),
    TriageRule(
        id="library-missing",
        title="a shared library is missing: {library}",
        cause="a package was built for another platform (a CUDA build without a driver is the usual case)",
        action="install the engine that fits this machine: `make setup` without a GPU, `make setup-gpu` with one",
        source="seen with vLLM 0.33.0's CUDA wheel on a machine without a driver",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(r"(?:ImportError|OSError): (?P<library>lib[\w.\-+]+): cannot open shared object file",),
    ),
    TriageRule(
        id="no-device-type",
        title="vLLM found no device",
        cause="no GPU is visible and VLLM_TARGET_DEVICE is not set",
        action="make the GPUs visible (`k3ctl doctor`, `nvidia-smi -L` in the engine's environment); without GPUs, "
        "a CPU profile "
        "(`k3ctl serve -p cpu-tiny`)",
        source="seen with vLLM 0.33.0 built without kernels",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Failed to infer device type",),
        unlike="`container-lost-gpus`: NVML says Unknown Error above it",
    ),
    TriageRule(
        id="model-not-found",
        title="the model cannot be read",
        cause="the path holds no config.json, or the repository does not exist, is gated, or cannot be "
        "reached",
        action="check `model.id` of the profile and HF_TOKEN; a local path must hold config.json",
        source="https://github.com/huggingface/huggingface_hub, errors of hf_raise_for_status",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(
            r"(?:RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError)",
            r"Can't load the configuration of",
            r"Invalid repository ID or local directory specified",
        ),
    ),
    TriageRule(
        id="core-init-failed",
        title="the engine core did not start",
        cause="the API server only reports that another process failed",
        action="read the first error above it",
        source="vLLM 0.33.0, v1/engine/utils.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Engine core initialization failed",
            r"EngineCore failed to start",
            r"WorkerProc (?:failed to start|initialization failed|hit an exception)",
            r"Failed core proc\(s\)",
        ),
        role="report",
    ),
)
