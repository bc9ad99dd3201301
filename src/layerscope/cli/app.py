"""The `layerscope` command: its subcommands, and the form in which errors reach the user."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from layerscope.cache import cache_dir
from layerscope.cli.shared import OPTIONS
from layerscope.errors import LayerscopeError, os_advice, printable
from layerscope.version import VERSION

MODULES = (
    "improve",
    "embed",
    "measure",
    "export",
    "lists",
    "doctor",
)
"""The files of commands, in the order of the help."""

EXAMPLES: dict[str, str] = {}

app = typer.Typer(
    name="layerscope",
    help="What every layer of a neural network holds, and which layer to read embeddings from.\n\n"
    '"The paper" is Layer by Layer (Skean et al., ICML 2025).',
    epilog="Example:\n\n"
    "layerscope improve smollm2-135m --data reviews.csv --column text --out better",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(
    name: str, panel: str, example: str, shared: Sequence[str] = ("as_json",)
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command to a panel of the help, with its own options and some `shared` ones, which it
    finds in its context. Its help ends with an example that runs."""
    EXAMPLES[name] = example

    def add(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)

        @functools.wraps(function)
        def run(**values: Any) -> None:
            function(**{key: values[key] for key in signature.parameters})

        shared_parameters = []
        for key in shared:
            annotation, default = OPTIONS[key]
            keyword = inspect.Parameter.KEYWORD_ONLY
            shared_parameters.append(
                inspect.Parameter(key, keyword, default=default, annotation=annotation)
            )
        parameters = [*signature.parameters.values(), *shared_parameters]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        app.command(name, epilog=f"Example:\n\n{example}", rich_help_panel=panel)(run)
        return function

    return add


def _print_version(value: bool) -> None:
    if value:
        print(f"layerscope {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the whole command."""


def load_commands() -> None:
    """Import the files of this folder that add commands."""
    for module in MODULES:
        importlib.import_module(f"layerscope.cli.{module}")


_STOPPED = "layerscope: stopped. Finished work is kept: run the same command again to resume."


def main() -> None:
    """Run the command line. A mistake of the user is one message on stderr and exit code 1; an
    interruption is exit code 130."""
    try:
        _main()
    except KeyboardInterrupt:  # before or after typer handles it
        print(_STOPPED, file=sys.stderr)
        sys.exit(130)


def _main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot show a character gets its code instead of an error
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in (
            "utf-8",
            "utf8",
        ):
            stream.reconfigure(errors="backslashreplace")
    load_commands()
    # the requests and retries of libraries are not what a user asked for
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    logging.getLogger("layerscope").setLevel(logging.INFO)
    for library in ("transformers", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    if "--json" in sys.argv:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    program: Any = typer.main.get_command(app)
    try:
        program(prog_name="layerscope")
    except LayerscopeError as error:
        print(f"layerscope: {error}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as leaving:  # typer turns Ctrl-C into this
        if leaving.code == 130:
            print(_STOPPED, file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader of the output ended, as `head` does
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:  # a defect, or an unforeseen input
        if os.environ.get("LAYERSCOPE_DEBUG"):
            raise
        print(f"layerscope: {_unexpected(error)}", file=sys.stderr)
        sys.exit(1)


def _unexpected(error: Exception) -> str:
    """Return one line about an unforeseen error. Its traceback goes to a file."""
    reason = next(iter(str(error).splitlines()), "")[:300]
    if advice := os_advice(error):
        return f"{advice} ({reason})" if reason else advice
    where = "set LAYERSCOPE_DEBUG=1 to see where"
    with contextlib.suppress(OSError, LayerscopeError):
        file = cache_dir() / "last-error.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(traceback.format_exception(error))
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
        where = f"the details are in {file}"
    return printable(
        f"unexpected {type(error).__name__}: {reason}. The input may be damaged, or this is a "
        f"defect: {where}. `layerscope doctor` checks the installation."
    )
