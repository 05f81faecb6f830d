"""The reference page of the rules: ``python -m k3ctl.triage.reference > docs/reference/triage.md``."""

from __future__ import annotations

import sys

from k3ctl.triage.rules import TriageRule, all_rules

_HEAD = """\
# Triage rules

`k3ctl triage LOG…` names the first cause in an engine's log and the one next action. This page is generated
from the rules (`python -m k3ctl.triage.reference`); a test fails when it is out of date.

* Errors that several ranks report alike are one incident.
* *Follows* lists the incidents that a rule explains when they come later; rules marked *report* never are a
  first cause.
* A rule speaks only about the vLLM versions in its range. After its *expires* date it still speaks, and says
  that its source has to be looked at again.
* Text in braces is filled in from the log.

"""


def markdown() -> str:
    """The whole page."""
    rules = all_rules()
    rows = [f"| [`{rule.id}`](#{rule.id}) | {rule.severity} | {_cell(rule.title)} |" for rule in rules]
    table = "\n".join(["| rule | severity | incident |", "|---|---|---|", *rows])
    return _HEAD + table + "\n\n" + "\n".join(_section(rule) for rule in rules)


def _section(rule: TriageRule) -> str:
    lines = [
        f"## {rule.id}",
        "",
        f"**{rule.title}** ({'report' if rule.role == 'report' else rule.severity})",
        "",
        f"Cause: {rule.cause}.",
        "",
        f"Next: {rule.action}.",
        "",
    ]
    seen = [f"`{pattern}`" for pattern in rule.patterns] or ["several lines together (a detector)"]
    lines += [f"* seen as: {' or '.join(seen)}"]
    if rule.within:
        lines += [f"* within: `{rule.within}`"]
    if rule.leads_to:
        lines += [f"* follows: {', '.join(f'`{name}`' for name in rule.leads_to)}"]
    lines += [
        f"* vLLM: {f'`{rule.vllm}`' if rule.vllm else 'all versions'}",
        f"* source: {rule.source}",
        f"* checked {rule.checked}, expires {rule.expires}",
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
