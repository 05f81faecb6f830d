"""The reference page of ``k3ctl triage``, written from the rules; ``scripts/write_reference.py`` writes it."""

from __future__ import annotations

from k3ctl.triage.facts import CONDITIONS
from k3ctl.triage.rules import TriageRule, all_rules

_HEAD = """\
# Triage rules

`k3ctl triage LOG…` names the first cause in an engine's log and the one next action.

* A log is read as it is, whatever carried it: srun, mpirun, torchrun, Ray, kubectl, CRI, docker, compose, journald. A
  launcher's rank is kept where the line names none. Kernel logs are logs too: give them together with the engine's.
* Errors that several ranks report alike are one incident. Line numbers count within each file.
* The *role* says what an incident can be. A **root** lies outside the engine and before everything in it. A **cause**
  explains itself. A **stop** came from outside: what follows it is its consequence. A **symptom** is one process
  noticing that another failed: a cause wins, also when it is logged a little later. A **report** only says that
  something failed.
* *Follows* lists the incidents that a rule explains.
* *Instead* names the rule that speaks when the log's own arguments, versions or GPUs rule this one's advice out.
* An error that no rule knows is shown with the line that says why, and is exit code 1. So is a log that ends before the
  server is ready, and one in which nothing is known.
* A rule speaks only about the vLLM versions in its range. After its *expires* date it still speaks, and says
  that its source has to be looked at again.
* Text in braces is filled in from the log.

"""


def page() -> str:
    """The whole page."""
    rules = all_rules()
    rows = [f"| [`{rule.id}`](#{rule.id}) | {rule.severity} | {_cell(rule.title)} |" for rule in rules]
    table = "\n".join(["| rule | severity | incident |", "|---|---|---|", *rows])
    parts = [_HEAD + table, _kinds(rules), _conditions(), *(_section(rule).rstrip("\n") for rule in rules)]
    return "\n\n".join(parts) + "\n"


def _kinds(rules: tuple[TriageRule, ...]) -> str:
    """Kind → rule → source → what tells it from its neighbours."""
    rows = [
        f"| {_cell(rule.title)} | [`{rule.id}`](#{rule.id}) | {_cell(rule.source)} | {_cell(rule.unlike)} |"
        for rule in rules
        if rule.unlike
    ]
    head = [
        "## Kinds and their neighbours",
        "",
        "| kind | rule | source | what tells it from the others |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def _conditions() -> str:
    """What rules look at before they speak."""
    rows = [f"| {name} | {meaning} |" for name, (meaning, _) in CONDITIONS.items()]
    head = [
        "## Conditions",
        "",
        "What is not in the log is unknown, and changes nothing.",
        "",
        "| name | holds when |",
        "|---|---|",
    ]
    return "\n".join([*head, *rows])


def _section(rule: TriageRule) -> str:
    lines = [
        f"## {rule.id}",
        "",
        f"**{rule.title}** ({rule.severity})",
        "",
        f"Cause: {rule.cause}.",
        "",
        f"Next: {rule.action}.",
        "",
    ]
    seen = [f"`{pattern}`" for pattern in rule.patterns] or [
        "several lines together, or another rule's condition"
    ]
    lines += [f"* seen as: {' or '.join(seen)}"]
    if rule.within:
        lines += [f"* within: `{rule.within}`"]
    if rule.unlike:
        lines += [f"* unlike {rule.unlike}"]
    if rule.leads_to:
        lines += [f"* follows: {', '.join(f'`{name}`' for name in rule.leads_to)}"]
    for conditions, other in rule.instead:
        lines += [f"* instead: [`{other}`](#{other}) when {' and '.join(conditions)}"]
    lines += [
        f"* role: {rule.role}",
        f"* vLLM: {f'`{rule.vllm}`' if rule.vllm else 'all versions'}",
        f"* source: {rule.source}",
        f"* checked {rule.checked}, expires {rule.expires}",
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
