"""YAML that anyone may have written, in bounded time: no nesting without end, no aliases that grow without end."""

from __future__ import annotations

from typing import Any

from k3ctl.errors import UsageError

MAX_DEPTH = 64


def load(text: str, where: str) -> Any:
    """The document in ``text``. Raises ``UsageError`` that names ``where`` and the line."""
    import yaml

    # libyaml where PyYAML was built with it: ten times faster, and every command reads profiles
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=fast):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                problem = "nested too deeply" if depth > MAX_DEPTH else "an alias (`*name`): write it out"
                raise UsageError(f"{where}{_line(event.start_mark)}: {problem}")
        return yaml.load(text, Loader=fast)
    except yaml.YAMLError as error:
        line = _line(getattr(error, "problem_mark", None))
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UsageError(f"{where}{line}: not valid YAML ({problem})") from error
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{where}: not valid YAML ({error})") from error


def _line(mark: Any) -> str:
    return "" if mark is None else f" line {mark.line + 1}"
