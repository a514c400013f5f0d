"""The application: nouns, their verbs, and commands that other packages bring."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer

from assay.cli import (
    batch,
    bench,
    compare,
    conditions,
    demo,
    doctor,
    env,
    experiment,
    measurement,
    model,
    patch,
    queue,
    report,
    search,
    ui,
    version,
    webhook,
    worker,
)
from assay.cli.command import USAGE, Root, command
from assay.domain.errors import Unavailable

GROUP = "assay.commands"
_HELP = {
    "serve": "Start the whole service on this machine, or the API of server mode.",
    "implement-worker": "Server mode: turn ideas into codebases.",
    "scheduler": "Server mode: give queued measurements to workers.",
    "migrate": "Server mode: bring the database to this version.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    app = build_app(given)
    if "--json" not in given:
        app(args=given, prog_name="assay")
        return
    try:
        code = app(args=given, prog_name="assay", standalone_mode=False)
    except typer.TyperException as error:
        from assay.cli.output import emit

        wrong = {"kind": "invalid_request", "message": error.format_message()}
        emit({"error": {**wrong, "status": None, "code": "usage"}})
        sys.exit(USAGE)
    except typer.Abort:
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def build_app(
    arguments: Sequence[str], *, sleep: Callable[[float], None] = time.sleep
) -> typer.Typer:
    """Return the application for these arguments; `sleep` is how its client waits.

    Commands of other packages are imported only if they are called.
    """
    app = typer.Typer(
        name="assay",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Turn research ideas into measured results.",
    )
    app.callback()(_root_with(sleep))
    for noun in (
        env,
        patch,
        batch,
        experiment,
        measurement,
        search,
        model,
        report,
        bench,
        worker,
        conditions,
        webhook,
    ):
        app.add_typer(noun.app)
    app.command("compare")(compare.compare)
    app.command("queue")(queue.queue)
    app.command("doctor")(doctor.doctor)
    app.command("demo")(demo.demo)
    app.command("ui")(ui.ui)
    app.command("version")(version.version)
    for entry in entry_points(group=GROUP):
        if entry.name != worker.app.info.name:  # which the noun calls when it has no verb
            _add_entry(app, entry, called=entry.name in arguments)
    return app


def _root_with(sleep: Callable[[float], None]) -> Callable[..., None]:
    """The options before the noun, for an application whose client waits with `sleep`."""

    def root(
        context: typer.Context,
        url: Annotated[
            str | None,
            typer.Option("--api", help="Where the service is.", envvar="ASSAY_API_URL"),
        ] = None,
        quiet: Annotated[
            bool, typer.Option("--quiet", "-q", help="Print no progress and no hints.")
        ] = False,
        no_color: Annotated[
            bool, typer.Option("--no-color", help="No colours (also: NO_COLOR=1).")
        ] = False,
        _version: Annotated[
            bool,
            typer.Option(
                "--version",
                help="Print the version and exit.",
                callback=version.print_version,
                is_eager=True,
            ),
        ] = False,
    ) -> None:
        context.obj = Root(url=url, quiet=quiet, color=not no_color, sleep=sleep)

    return root


def _add_entry(app: typer.Typer, entry: EntryPoint, called: bool) -> None:
    if called:
        try:
            app.command(entry.name)(entry.load())
            return
        except ImportError as error:
            missing = f"`assay {entry.name}` cannot be loaded ({error}); "
            _add_stub(app, entry, missing + "install it with: pip install 'assay[local]'")
            return
    _add_stub(app, entry, f"`assay {entry.name}` was not loaded")


def _add_stub(app: typer.Typer, entry: EntryPoint, message: str) -> None:
    """A command that is listed, and says what is wrong should it come to be called."""

    def stub(_rest: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> Any:
        raise Unavailable(message)

    app.command(
        entry.name,
        help=_HELP.get(entry.name, f"See `assay {entry.name} --help`."),
        context_settings={"ignore_unknown_options": True},
    )(command(stub))
