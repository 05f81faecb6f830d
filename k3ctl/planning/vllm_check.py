"""Ask the installed vLLM itself: its argument parser and configuration, in a child process without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.errors import MachineError
from k3ctl.planning.plan import Plan
from k3ctl.planning.rules import checked
from k3ctl.planning.rules.base import evaluate
from k3ctl.profiles.vllm_args import argv

TIMEOUT_S = 300


@dataclass(frozen=True)
class VllmAnswer:
    """What vLLM said about one plan."""

    error: str | None
    """Why vLLM refuses the command line or its configuration."""
    unsupported: str | None
    """vLLM's first reason against the specialized path."""
    expected: str | None
    """The reason that our rules put first."""
    warnings: tuple[str, ...]
    resolved: Mapping[str, Any]

    @property
    def disagreement(self) -> str | None:
        """A bug of ours, in one line; None when both say the same."""
        if self.error is not None or self.unsupported == self.expected:
            return None
        ours, theirs = self.expected or "accepts it", self.unsupported or "accepts it"
        return f"vLLM says: {theirs}; our rules say: {ours}"

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "error": self.error,
            "unsupported": self.unsupported,
            "our_first_reason": self.expected,
            "disagreement": self.disagreement,
            "warnings": list(self.warnings),
            "resolved": dict(self.resolved),
        }


def check(plan: Plan, python: str | None = None) -> VllmAnswer:
    """vLLM's answer to the plan's command line; about 20 s.

    Raises ``MachineError`` when vLLM is not installed for ``python``, or its answer cannot be read.
    """
    answer = ask([_case(plan)], python)[0]
    findings = evaluate([r for r in checked.RULES if r.specialized], plan.deployment, specialized=True)
    return VllmAnswer(
        error=answer["error"],
        unsupported=answer["unsupported"],
        expected=findings[0].rule.reason if findings else None,
        warnings=tuple(answer.get("warnings", ())),
        resolved=answer.get("resolved", {}),
    )


def ask(cases: Sequence[Mapping[str, Any]], python: str | None = None) -> list[dict[str, Any]]:
    """The child's answers to ``cases`` (``runtime.offline.dryrun`` describes both)."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    try:
        done = subprocess.run(
            [python or sys.executable, "-m", "runtime.offline.dryrun"],
            input=json.dumps({"cases": list(cases)}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except FileNotFoundError as error:
        raise MachineError(f"no Python at `{python}`") from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"vLLM gave no answer within {TIMEOUT_S} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answers = [files.parse_json(line, "the answer of the installed vLLM") for line in lines]
    if len(answers) != len(cases):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise MachineError(
            f"the installed vLLM cannot be asked: {last}",
            hint="install vLLM 0.33.0 (a build without kernels is enough), or name its interpreter with `--python`",
        )
    return answers


def _case(plan: Plan) -> dict[str, Any]:
    d = plan.deployment
    nodes = d.config.profile.requires.nodes
    per_node = d.parallel.gpus // nodes or 1
    product = d.hardware.product if d.hardware else next(iter(d.config.profile.requires.gpu), "GPU")
    return {
        "id": d.config.profile.name,
        "argv": argv(d.config),
        "env": dict(d.config.env),
        "gpu": {
            "capability": list(d.capability or (0, 0)),
            "name": f"NVIDIA {product}",
            "memory_bytes": d.gpu_bytes,
            "count": per_node,
        },
    }
