"""Binaries, compilers and drivers that are older than the GPU, and artefacts that are fetched at run time."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 11, 30)
_EXPIRES = date(2027, 6, 30)

RULES = (
    TriageRule(
        id="no-kernel-image",
        title="a compiled extension has no code for this GPU's architecture{top}",
        cause="it was built for other GPUs: a build for sm_100a loads on a B200 (compute capability 10.0) and not "
        "on a B300 or "
        "GB300 (10.3), one for sm_90a only on Hopper (9.0)",
        action="use vLLM's official wheel or image, or rebuild with this compute capability in "
        "TORCH_CUDA_ARCH_LIST (setting it at "
        "run time does nothing); `cuobjdump --list-elf FILE` lists what a library holds",
        source="https://github.com/vllm-project/vllm/issues/56548, https://github.com/pytorch/FBGEMM/issues/6151",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"no kernel image is available for execution on the device",
            r"cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU",
            r"with CUDA capability (?P<cc>sm_\d+) is not compatible with the current PyTorch installation",
            r"[Nn]o compatible cubin|cubin .{0,80}not found for (?:sm|arch)",
        ),
        unlike="`jit-toolchain-old`: the code is made now, by a compiler that does not know the GPU; "
        "`driver-too-old`: the driver "
        "refuses newer code",
    ),
    TriageRule(
        id="jit-toolchain-old",
        title="the compiler here is older than the GPU: it does not know {arch}",
        cause="kernels are compiled at run time by a ptxas, nvcc or nvrtc of an older CUDA toolkit; sm_103 needs "
        "CUDA 12.9, and "
        "Kimi K3's images use CUDA 13",
        action="put a newer toolkit first: CUDA_HOME and PATH to CUDA 13, TRITON_PTXAS_PATH (and "
        "TRITON_PTXAS_BLACKWELL_PATH) to "
        "its bin/ptxas; or use the official image",
        source="https://github.com/vllm-project/vllm/pull/31338, https://github.com/vllm-project/recipes/issues/269",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"ptxas\S* fatal\s*: Value '(?P<arch>\w+)' is not defined for option 'gpu-name'",
            r"nvcc fatal\s*: Unsupported gpu architecture '(?P<arch>\w+)'",
            r"nvcc fatal\s*: .{0,60}?'(?P<arch>(?:sm|compute)_\w+)'",
            r"Unsupported \.version (?P<arch>[\d.]+; current version is '[\d.]+')",
            r"[Uu]nsupported \.target '?(?P<arch>sm_\w+)",
            r"nvrtc: error: invalid value for --gpu-architecture(?P<arch>)",
            r"Unknown CUDA arch \((?P<arch>[\w.+]+)\) or GPU not supported",
            r"(?:target|arch|architecture|gpu-name)\W{1,6}(?P<arch>sm_1[02]\d\w?)\W.{0,80}?(?:not "
            r"supported|unsupported|unknown|not defined)",
            r"(?:[Uu]nsupported|[Uu]nknown|not "
            r"recognized).{0,60}?(?:target|arch|architecture)\W{1,6}(?P<arch>sm_\w+)",
            r"(?P<arch>SM ?1[02]\.?\w) requires CUDA (?:>=|toolkit)",
        ),
        unlike="`no-kernel-image`: nothing is compiled here, a finished binary lacks the code; `driver-too-old`: "
        "the compiler is "
        "new and the driver is not",
    ),
    TriageRule(
        id="jit-toolchain-missing",
        title="a tool for compiling kernels at run time is missing: {tool}",
        cause="FlashInfer, Triton and CuTe compile what is not installed as a finished binary, and need it for that",
        action="use an image with the CUDA 13 toolkit and set CUDA_HOME to it, or install flashinfer-jit-cache and "
        "flashinfer-cubin of FlashInfer's own version, so that nothing has to be compiled",
        source="https://docs.flashinfer.ai/installation.html; PyTorch, torch/utils/cpp_extension.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?:Could not|Cannot|could not|cannot|Failed to|Unable to) (?:find|locate) "
            r"(?P<tool>nvcc|ptxas|ninja|gcc|g\+\+|cc)\b",
            r"No such file or directory: '(?:[^']+/)?(?P<tool>nvcc|ptxas|ninja|gcc|g\+\+)'",
            r"(?P<tool>nvcc|ptxas|ninja|gcc|g\+\+): (?:command )?not found",
            r"(?P<tool>CUDA_HOME) environment variable is not set",
            r"(?P<tool>Ninja) is required to load C\+\+ extensions",
            r"Failed to find (?P<tool>C compiler)",
        ),
        unlike="`jit-toolchain-old`: it is there and too old; `artefacts-unreachable`: headers or cubins, not the "
        "compiler",
    ),
    TriageRule(
        id="driver-too-old",
        title="the driver is too old for the CUDA of this environment",
        cause="the driver refuses code or a runtime of a newer CUDA; Kimi K3's images need r580 or newer",
        action="install driver r580 or newer on the host (a container cannot bring it), or use an image of an "
        "older CUDA",
        source="https://docs.nvidia.com/deploy/cuda-compatibility/",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"NVIDIA driver on your system is too old",
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"(?:provided )?PTX was compiled with an unsupported toolchain",
            r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION|cudaErrorInsufficientDriver|cudaErrorUnsupportedPtxVersion",
        ),
        unlike="`driver-mismatch`: two libcuda are mixed; `jit-toolchain-old`: the compiler is the older part",
    ),
    TriageRule(
        id="artefacts-unreachable",
        title="kernel artefacts could not be fetched at run time: no way to {host}",
        cause="FlashInfer downloads headers and cubins when they are not installed, and this host has no way out "
        "(network, "
        "DNS, proxy); the assertion about a missing file follows from it",
        action="install flashinfer-cubin and flashinfer-jit-cache of FlashInfer's own version, or run `flashinfer "
        "download-cubin` "
        "where there is a network and set FLASHINFER_CUBIN_DIR",
        source="https://github.com/flashinfer-ai/flashinfer/issues/2941, "
        "https://github.com/vllm-project/vllm/pull/57644",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Failed to connect to NVIDIA artifactory(?:.*?host='(?P<host>[^']+)')?",
            r"host='(?P<host>[\w.\-]*(?:nvidia|flashinfer)[\w.\-]*)'",
            r"Failed to (?:download|fetch|get) \S*(?:trtllm|cubin|flashinfer|artifact|checksum|\.h\b|\.json\b)",
            r"(?:cubin|artifact|header)\S* .{0,60}?could not be (?:downloaded|fetched)",
            r"AssertionError: \S+\.(?:h|cubin|cuh) not found",
        ),
        instead=((("served-after",), "artefacts-missing-served"),),
        unlike="`hub-unreachable`: the model itself cannot be fetched; `no-kernel-image`: the artefact is there, "
        "for another GPU",
    ),
    TriageRule(
        id="artefacts-missing-served",
        title="kernel artefacts could not be fetched ({host}); the server came up without them",
        cause="FlashInfer has no way to its server; kernels that are not installed are replaced by slower ones or "
        "fail at their "
        "first use",
        action="install flashinfer-cubin and flashinfer-jit-cache of FlashInfer's own version",
        source="https://github.com/flashinfer-ai/flashinfer/issues/2941",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
    ),
    TriageRule(
        id="hub-unreachable",
        title="{host} cannot be reached",
        cause="the model, its tokenizer or its code was to be fetched, and this host has no way there",
        action="fetch it where there is a network and set HF_HUB_CACHE and HF_HUB_OFFLINE=1, or set the proxy "
        "(HTTPS_PROXY) in the engine's environment",
        source="https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"host='(?P<host>[\w.\-]*(?:huggingface|hf\.co|modelscope|openaipublic|githubusercontent)[\w.\-]*)'",
            r"couldn't connect to '?(?:https://)?(?P<host>huggingface\.co)",
            r"OfflineModeIsEnabled.{0,20}?(?P<host>)",
        ),
        leads_to=("model-not-found",),
        unlike="`artefacts-unreachable`: kernels, not the model; `model-not-found`: the hub answered, and has no "
        "such model",
    ),
)
