"""The rules that predict what vLLM will do with a deployment, each with its vLLM range, date and source."""

from k3ctl.planning.rules import (
    checked,
    combinations,
    costs,
    environment,
    hopper,
    requirements,
    silent,
    unchecked,
)
from k3ctl.planning.rules.base import Effect, PlanFinding, PlanRule, changes, evaluate

ALL: tuple[PlanRule, ...] = (
    *requirements.RULES,
    *combinations.RULES,
    *checked.RULES,
    *unchecked.RULES,
    *hopper.RULES,
    *silent.RULES,
    *environment.RULES,
    *costs.RULES,
)

__all__ = ["ALL", "Effect", "PlanFinding", "PlanRule", "changes", "evaluate"]
