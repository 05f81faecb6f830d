"""What CI compiles and audits of each kernel, for every target, on a machine without a GPU."""

from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.kernels.common.workshop.audit import Limits, Role, audit

TARGETS = ("sm_90a", "sm_100a", "sm_103a")


@dataclass(frozen=True)
class Build:
    """One kernel variant.

    kernel: name of its class (CuTe DSL) or function (Triton), which the compiled symbol contains. image: compiles it
    for a target and returns the cubin. roles: of the kernel's parameters, in order (see `audit`). settled,
    early_trigger, pdl: as in `audit`. targets: that it is compiled for. dynamic_shared_bytes: what the launch asks for.
    """

    name: str
    kernel: str
    image: Callable[[str], bytes]
    roles: tuple[Role, ...]
    settled: bool = False
    early_trigger: bool = False
    pdl: bool = True
    targets: tuple[str, ...] = TARGETS
    dynamic_shared_bytes: int = 0
    limits: Limits = field(default_factory=Limits)

    def problems(self, target: str) -> list[str]:
        """Compile for `target` and return every violation of the rules and limits."""
        image = self.image(target)
        found = audit(
            image,
            dict(enumerate(self.roles)),
            settled=self.settled,
            early_trigger=self.early_trigger,
            pdl=self.pdl,
            limits=self.limits,
        )
        if self.kernel.encode() not in image:
            found.append(f"no kernel named {self.kernel} in the image")
        if self.dynamic_shared_bytes > 232448:  # 227 KB, the most a block may have on all three targets
            found.append(f"{self.dynamic_shared_bytes} bytes of shared memory, limit 232448")
        return found
