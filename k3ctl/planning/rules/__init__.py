"""The rules that predict what vLLM will do with a deployment, each with its vLLM range, date and source."""

from k3ctl.planning.rules import checked, environment, general, silent, unchecked
from k3ctl.planning.rules.base import Effect, Finding, Rule, evaluate

ALL: tuple[Rule, ...] = (
    *general.RULES,
    *checked.RULES,
    *unchecked.RULES,
    *silent.RULES,
    *environment.RULES,
)

__all__ = ["ALL", "Effect", "Finding", "Rule", "evaluate"]
