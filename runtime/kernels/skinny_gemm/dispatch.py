"""Bind a projection to a call site: choose an implementation per number of rows once, then call it."""

import torch
from torch import Tensor

from runtime.kernels.common.launch.device import Device, device_of, missing_packages
from runtime.kernels.common.launch.dispatch import AUTO, Choice, Variant, choose, record, table_of, unmeasured
from runtime.kernels.common.maths.activations import situ
from runtime.kernels.skinny_gemm.plans import Bucket, Plan, default_plan
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec, check, check_weight, unsupported
from runtime.kernels.skinny_gemm.table import PLANS

MARGIN = 0.98  # of cuBLAS's time: what is not faster than that is not taken


MEASURED_ON = frozenset(PLANS)


def plan_of(spec: SkinnyGemmSpec, device: Device) -> Plan | None:
    """The measured plan of a weight, else one by rule, else None."""
    measured = table_of(PLANS, device).get((spec.n, spec.k, spec.epilogue))
    return measured or default_plan(spec.n, spec.k, spec.epilogue)


def choose_skinny_gemm(spec: SkinnyGemmSpec, rows: int, device: Device, requested: str = AUTO) -> Choice:
    """Choose among "cute" (the streaming kernel) and "cublas" (through PyTorch) for `rows` rows."""
    reasons = [
        *unsupported(spec, device.arch),
        *missing_packages("cutlass"),
        *unmeasured(device, MEASURED_ON, requested),
    ]
    plan = None if reasons else plan_of(spec, device)
    bucket = plan.bucket(rows) if plan else None
    if not reasons and bucket is None:
        reasons.append(f"no launch shape for {rows} rows")
    why = ""
    if bucket is not None and requested == AUTO:
        slow = _slow(spec, bucket)
        reasons += [slow] if slow else []
        why = f"measured {bucket.us} us, cuBLAS {bucket.cublas_us}"
    variants = (Variant("cute", tuple(reasons), why), Variant("cublas", fallback=True))
    return choose("skinny_gemm", variants, requested)


def _slow(spec: SkinnyGemmSpec, bucket: Bucket) -> str:
    """Why automatic choice does not take a runnable kernel, or ""."""
    if bucket.us is None or bucket.cublas_us is None:
        return f"{spec.n} x {spec.k} with {bucket.rows} rows was not measured"
    # For "situ" cuBLAS's time is without the activation, which is a kernel of its own.
    if bucket.us > bucket.cublas_us * (1.0 if spec.epilogue == "situ" else MARGIN):
        return f"measured {bucket.us} us, cuBLAS {bucket.cublas_us}"
    return ""


class SkinnyGemm:
    """`x @ weight.T` with an epilogue, for one weight [n, k] BF16.

    provider: "auto", "cute" or "cublas". Raises ValueError if the weight does not fit `spec` or an explicit provider
    cannot run. With more than 64 rows automatic choice takes cuBLAS.
    """

    def __init__(self, spec: SkinnyGemmSpec, weight: Tensor, *, provider: str = AUTO) -> None:
        check_weight(spec, weight)
        self.spec, self.weight = spec, weight
        self._provider, self._device = provider, device_of(weight.device)
        self._choices = {1: choose_skinny_gemm(spec, 1, self._device, provider)}

    def choice(self, rows: int) -> Choice:
        """What a call with `rows` rows runs, and why; raises ValueError if an explicit provider cannot run it."""
        if rows not in self._choices:
            self._choices[rows] = choose_skinny_gemm(self.spec, max(rows, 1), self._device, self._provider)
        return self._choices[rows]

    def prepare(self, max_rows: int) -> None:
        """Choose for, and compile, every launch that calls with 1 … `max_rows` rows make, before a capture."""
        taken = [rows for rows in range(1, max_rows + 1) if self.choice(rows).variant == "cute"]
        if not taken:
            return
        from runtime.kernels.skinny_gemm import cute_launch

        for plan, bucket in {self._shape(rows) for rows in taken}:
            cute_launch.prepare(self.spec.k, plan, bucket, self.spec.epilogue, self._device.arch)

    def _shape(self, rows: int) -> tuple[Plan, Bucket]:
        """The launch shape of a call that "cute" was chosen for."""
        plan = plan_of(self.spec, self._device)
        bucket = plan.bucket(rows) if plan else None
        assert plan is not None and bucket is not None
        return plan, bucket

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        """Write the product of x [M, k] to `out` [M, columns] and return it."""
        check(self.spec, x, out)
        choice = self.choice(x.shape[0])
        record(choice)
        if x.shape[0] == 0:
            return out
        if choice.variant == "cublas":
            return self._cublas(x, out)
        from runtime.kernels.skinny_gemm import cute_launch

        plan, bucket = self._shape(x.shape[0])
        cute_launch.run(x, self.weight, out, plan=plan, bucket=bucket, epilogue=self.spec.epilogue)
        return out

    def _cublas(self, x: Tensor, out: Tensor) -> Tensor:
        if self.spec.epilogue == "bf16":
            return torch.mm(x, self.weight.T, out=out)
        if self.spec.epilogue == "fp32":
            return torch.mm(x, self.weight.T, out_dtype=torch.float32, out=out)
        gate, up = torch.chunk(torch.mm(x, self.weight.T), 2, dim=-1)
        return out.copy_(situ(gate, up))
