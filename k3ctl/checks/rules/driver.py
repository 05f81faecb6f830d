"""Driver, NVML and CUDA initialization."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.view import NodeView

NVML_API = Source(
    "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html", "2026-11", "nvmlReturn_t"
)
MISMATCH = Source("https://github.com/vllm-project/vllm/issues/29737", "2025-11-29")
CUDA13 = 13000
GPU_PROFILES = "every profile that needs a GPU"

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, LIB_RM_MISMATCH, UNKNOWN_ERROR = 12, 9, 18, 999
EXPLAINED = (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, LIB_RM_MISMATCH)
CUDA_ERRORS = {
    802: (
        "system not yet initialized: the fabric manager is missing, busy, or of another version",
        "start `nvidia-fabricmanager` of the driver's version (HGX B200/B300 also need `nvlsm`)",
    ),
    803: (
        "the libcuda in use does not belong to the loaded driver: a compat library in the image wins",
        "remove the compat directory from LD_LIBRARY_PATH and the ld cache, or install a matching driver",
    ),
}


@rule(
    "driver.library-not-found",
    Severity.INFO,
    Area.DRIVER,
    "No NVIDIA driver on this machine",
    blocks=GPU_PROFILES,
    remedy="`cpu-tiny` needs none; on a GPU host install the driver, or start the container with GPUs",
    sources=(NVML_API,),
)
def library_not_found(view: NodeView) -> Iterator[Hit]:
    error = view.node.nvml.error
    if error is not None and error.code == LIBRARY_NOT_FOUND:
        yield Hit("NVML library not found (code 12)")


@rule(
    "driver.binding-missing",
    Severity.WARN,
    Area.DRIVER,
    "The Python binding of NVML is not installed",
    blocks="reading GPUs",
    remedy="pip install nvidia-ml-py",
    sources=(Source("https://pypi.org/project/nvidia-ml-py/", "2026-11"),),
)
def binding_missing(view: NodeView) -> Iterator[Hit]:
    error = view.node.nvml.error
    if error is not None and error.na == "BindingNotInstalled":
        yield Hit("module `pynvml` of the distribution nvidia-ml-py cannot be imported")


@rule(
    "driver.not-loaded",
    Severity.FAIL,
    Area.DRIVER,
    "The driver library is present, its kernel module is not loaded",
    blocks=GPU_PROFILES,
    remedy="load it with `sudo modprobe nvidia`; in a container check that the GPU devices were passed in",
    sources=(NVML_API,),
)
def not_loaded(view: NodeView) -> Iterator[Hit]:
    error = view.node.nvml.error
    if error is not None and error.code == DRIVER_NOT_LOADED:
        yield Hit("nvmlInit: DriverNotLoaded (code 9)")


@rule(
    "driver.library-mismatch",
    Severity.FAIL,
    Area.DRIVER,
    "The driver was upgraded and the old kernel module is still loaded",
    blocks=GPU_PROFILES,
    remedy="reboot, or stop every GPU process and reload the nvidia modules",
    sources=(MISMATCH, NVML_API),
)
def library_mismatch(view: NodeView) -> Iterator[Hit]:
    error = view.node.nvml.error
    if error is not None and error.code == LIB_RM_MISMATCH:
        yield Hit("nvmlInit: library and kernel module versions differ (code 18)")


@rule(
    "driver.nvml-error",
    Severity.FAIL,
    Area.DRIVER,
    "NVML does not start",
    blocks=GPU_PROFILES,
    remedy="run `nvidia-smi` and read `dmesg`; reload or reinstall the driver",
    sources=(NVML_API,),
)
def nvml_error(view: NodeView) -> Iterator[Hit]:
    error = view.node.nvml.error
    if error is not None and error.code >= 0 and error.code not in EXPLAINED and not _cut_off(view):
        yield Hit(f"nvmlInit: {error.na} (code {error.code})")


def _cut_off(view: NodeView) -> bool:
    """NVML says Unknown Error although the devices are there: the fault of a container, not of a driver."""
    error = view.node.nvml.error
    devices = bool(view.host and view.host.device_files) or view.node.virt == "container"
    return error is not None and error.code == UNKNOWN_ERROR and devices


@rule(
    "driver.container-lost-gpus",
    Severity.FAIL,
    Area.DRIVER,
    "The container has lost its GPUs",
    blocks=GPU_PROFILES,
    remedy="restart the container; to keep it from coming back pass the GPUs by CDI or as explicit device nodes, "
    "and make the /dev/char links: `systemctl daemon-reload` on the host rewrites a container's device cgroup",
    sources=(
        Source("https://github.com/NVIDIA/nvidia-container-toolkit/issues/48", "2023-02-07"),
        Source("https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227", "2025-08-07"),
    ),
)
def container_lost(view: NodeView) -> Iterator[Hit]:
    if _cut_off(view):
        devices = ", ".join((view.host.device_files if view.host else None) or ())
        there = f"{devices} there" if devices else "inside a container"
        yield Hit(f"NVML: Unknown Error (code {UNKNOWN_ERROR}), {there}")


@rule(
    "driver.too-old-for-cuda13",
    Severity.FAIL,
    Area.DRIVER,
    "The driver is older than CUDA 13",
    blocks="vLLM 0.33 (CUDA 13 builds)",
    remedy="install driver branch 580 or newer",
    sources=(
        Source("https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml", "2026-08"),
        Source(
            "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
            "2026-11",
            "CUDA 13.0 needs driver r580",
        ),
    ),
)
def too_old(view: NodeView) -> Iterator[Hit]:
    version = view.node.nvml.cuda_driver
    if version is not None and 0 < version < CUDA13 and view.node.gpus:
        driver = view.node.nvml.driver or "unknown version"
        yield Hit(f"driver {driver} speaks CUDA {version // 1000}.{version % 1000 // 10}, 13.0 is needed")


@rule(
    "driver.shim-package",
    Severity.WARN,
    Area.DRIVER,
    "The distribution `pynvml` is installed",
    blocks="reliable NVML reads: old releases of it shadow the module of nvidia-ml-py",
    remedy="pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
    sources=(Source("https://pypi.org/project/pynvml/", "2026-11", "deprecated in favour of nvidia-ml-py"),),
)
def shim_package(view: NodeView) -> Iterator[Hit]:
    version = view.host.packages.get("pynvml") if view.host else None
    if version:
        yield Hit(f"pynvml {version} beside nvidia-ml-py {view.host.packages.get('nvidia-ml-py', 'absent')}")  # type: ignore[union-attr]


@rule(
    "cuda.unreachable",
    Severity.FAIL,
    Area.DRIVER,
    "NVML sees GPUs and the CUDA driver library cannot be reached",
    blocks=GPU_PROFILES,
    remedy="in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility; on a host install the driver's libcuda",
    sources=(
        Source(
            "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
            "2026-11",
        ),
    ),
)
def cuda_unreachable(view: NodeView) -> Iterator[Hit]:
    if view.host and view.host.cuda_problem and view.node.present:
        yield Hit(view.host.cuda_problem)


@rule(
    "cuda.init",
    Severity.FAIL,
    Area.DRIVER,
    "CUDA does not initialize",
    blocks=GPU_PROFILES,
    remedy="read the CUDA error; compare the driver with the libcuda in use",
    sources=(
        Source("https://github.com/siderolabs/extensions/pull/717", "2025-05-31", "802"),
        Source("https://github.com/llm-d/llm-d/issues/706", "2026-02-06", "803"),
    ),
)
def cuda_init(view: NodeView) -> Iterator[Hit]:
    code = view.host.cuda_error if view.host else None
    if not code or not view.node.present:
        return
    meaning, remedy = CUDA_ERRORS.get(code, ("", None))
    libcuda = next((lib for lib in view.host.libraries if lib.name == "cuda"), None) if view.host else None
    path = f", from {libcuda.path}" if libcuda else ""
    yield Hit(f"cuInit returned {code}{': ' + meaning if meaning else ''}{path}", remedy=remedy)
