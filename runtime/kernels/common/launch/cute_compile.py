"""Compiling CuTe DSL kernels: for the GPU at hand, or for any target on a machine without one."""

import tempfile
from pathlib import Path

import torch
from cutlass import BFloat16, Float32, Int32, Uint8, cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

DTYPES = {torch.bfloat16: BFloat16, torch.float32: Float32, torch.int32: Int32, torch.uint8: Uint8}


def symbol(divisibility: int = 1):
    """A size or stride known only at the call, a multiple of `divisibility`."""
    return cute.sym_int(divisibility=divisibility)


def tensor(shape, stride, dtype: torch.dtype = torch.bfloat16, align: int = 16):
    """A stand-in for a tensor argument; entries of `shape` and `stride` are ints or `symbol`s."""
    return make_fake_tensor(DTYPES[dtype], tuple(shape), tuple(stride), assumed_align=align)


def compile_kernel(kernel, *arguments, arch: str):
    """Compile `kernel(*arguments, stream)` and return a function of torch tensors and floats.

    The stream is PyTorch's current one at each call. Shapes, strides, dtypes and device of the tensors are
    checked against the stand-ins at each call.
    """
    options = f"--gpu-arch {arch} --enable-tvm-ffi"
    return cute.compile(kernel, *arguments, make_fake_stream(use_tvm_ffi_env_stream=True), options=options)


def compile_image(kernel, *arguments, arch: str) -> bytes:
    """Compile as `compile_kernel` does, without a GPU or driver, and return the device image (a cubin)."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch {arch} --enable-tvm-ffi --keep-cubin --dump-dir {folder}"
        compiled = cute.compile(
            kernel, *arguments, make_fake_stream(use_tvm_ffi_env_stream=True), options=options
        )
        image = compiled.__cubin__
    return image if isinstance(image, bytes) else Path(image).read_bytes()
