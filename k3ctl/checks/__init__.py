"""Checks: pure judgements about what ``gpus`` and ``host`` read.

``evaluate`` gives the findings, ``domains`` the NVLink groups, ``verdict`` the short answer.
"""

from k3ctl.checks.domains import Domain, domains
from k3ctl.checks.evaluate import evaluate
from k3ctl.checks.finding import RULES, Area, Finding, Rule, Severity
from k3ctl.checks.products import Product, classify
from k3ctl.checks.verdict import MachineVerdict, verdict
from k3ctl.facts.products import Kind

__all__ = [
    "RULES",
    "Area",
    "Domain",
    "Finding",
    "Kind",
    "MachineVerdict",
    "Product",
    "Rule",
    "Severity",
    "classify",
    "domains",
    "evaluate",
    "verdict",
]
