"""The typer application: declares the commands, renders what they return, maps errors to exit codes once."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from k3ctl import __version__, commands, output
from k3ctl.errors import ExitCode, K3Error, UsageError
from k3ctl.output import CommandResult

EPILOG = """\b
Examples:
  k3ctl                                   what to do next on this machine
  k3ctl demo                              the whole loop on a tiny K3, no GPU needed
  k3ctl doctor                            can this machine run K3, and why not
  k3ctl plan --hardware GB300:16          which configuration would run there
  k3ctl serve                             serve what plan chooses; verifies its path
  k3ctl bench 8k1k --dry-run              the client's command, not run
  k3ctl bench 8k1k --against published    measure, beside the published numbers
  k3ctl triage engine.log                 the first cause in a log
  k3ctl --install-completion              TAB completes profiles, presets and runs

Each command has its own page: `k3ctl COMMAND --help`. All take --json.

\b
Exit codes:
  0 ok · 1 ran and failed · 2 usage · 3 machine cannot · 4 engine failed
  130 interrupted
"""


FIRST_SENTENCE = 200
"""Longest first sentence of a command's help; it is wrapped, not cut."""


class Grouped(TyperGroup):
    """The commands by what a person wants to do, in the order of a first day."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each group."""
        shown = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        named = {name for names in commands.GROUPS.values() for name in names}
        more = tuple(name for name in shown if name not in named)
        for title, names in {**commands.GROUPS, "More": more}.items():
            rows = [(n, self.commands[n].get_short_help_str(FIRST_SENTENCE)) for n in names if n in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    name="k3ctl",
    cls=Grouped,
    help="Can this machine run Kimi K3, with which configuration, is the fast path running, how fast is it.",
    epilog=EPILOG,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help costs 190 ms of imports; plain help reads the same everywhere
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of a table.")]


def command(
    group: typer.Typer, name: str, *, epilog: str | None = None, hidden: bool = False
) -> Callable[[Callable[..., CommandResult]], Callable[..., None]]:
    """Register ``fn`` under ``name``, add ``--json``, and render the ``CommandResult`` that it returns.

    A function with a parameter ``as_json`` is told whether ``--json`` was given.
    """

    def register(fn: Callable[..., CommandResult]) -> Callable[..., None]:
        signature = inspect.signature(fn, eval_str=True)
        as_json = inspect.Parameter(
            "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption
        )

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> None:
            json_wanted = kwargs.pop("as_json", False)
            told = {"as_json": json_wanted} if "as_json" in signature.parameters else {}
            result = fn(*args, **kwargs, **told)
            output.emit(result, as_json=json_wanted)
            if result.exit_code:
                raise typer.Exit(int(result.exit_code))

        parameters = [*(p for p in signature.parameters.values() if p.name != "as_json"), as_json]
        run.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        group.command(name, epilog=epilog, hidden=hidden)(run)
        return run

    return register


def _version(value: bool) -> None:
    if value:
        output.write_text(f"k3ctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  # eager: its callback prints and exits
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback for an unexpected error.")] = False,
) -> None:
    """Can this machine run Kimi K3, with which configuration, is the fast path running, how fast is it."""
    if debug:
        os.environ["K3CTL_DEBUG"] = "1"
    if context.invoked_subcommand is None:
        from k3ctl.commands import next as next_step

        output.emit(next_step.next_(), as_json=False)


def _register_commands() -> None:
    """Every module of ``k3ctl.commands`` brings ``register(app, command)``; VERBS gives their order in the help."""
    found = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    for name in [*(verb for verb in commands.VERBS if verb in found), *sorted(found - set(commands.VERBS))]:
        importlib.import_module(f"k3ctl.commands.{name}").register(app, command)


def main(argv: list[str] | None = None) -> int:
    """Run the CLI and return its exit code."""
    args = sys.argv[1:] if argv is None else argv
    as_json = "--json" in args
    try:
        code = typer.main.get_command(app).main(args=args, prog_name="k3ctl", standalone_mode=False)
    except K3Error as error:
        if os.environ.get("K3CTL_DEBUG"):
            raise
        output.emit_error(error, as_json=as_json)
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        output.emit_error(K3Error("interrupted"), as_json=False)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        output.reader_has_gone()  # in the middle of a stream, e.g. `k3ctl logs --follow | head`
        return int(ExitCode.OK)
    except Exception as error:
        return _unexpected(error, as_json=as_json)
    return int(code or 0)


def _unexpected(error: Exception, *, as_json: bool) -> int:
    """Typer's own usage errors (it vendors click, so they are recognised by shape), or a bug of ours."""
    format_message = getattr(error, "format_message", None)
    if callable(format_message):
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context is not None else None
        output.emit_error(UsageError(format_message(), hint=hint), as_json=as_json)
        return int(ExitCode.USAGE)
    if os.environ.get("K3CTL_DEBUG"):
        raise error
    bug = K3Error(
        f"unexpected {type(error).__name__}: {error}",
        hint="this is a bug in k3ctl; run again with `k3ctl --debug …`",
    )
    output.emit_error(bug, as_json=as_json)
    return int(ExitCode.FAILED)


def run() -> None:
    """Console-script entry."""
    sys.exit(main())


_register_commands()
