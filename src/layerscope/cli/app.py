"""The `layerscope` command: its subcommands, and how errors reach the user."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys

import typer

from layerscope.errors import LayerscopeError
from layerscope.version import VERSION

app = typer.Typer(
    name="layerscope",
    help="What every layer of a neural network holds, and which layer to read embeddings from.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"layerscope {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit."),
) -> None:
    """Options of the whole command."""


def _load_commands() -> None:
    """Every file of this folder adds its command when it is imported: adding a command is adding a file."""
    package = importlib.import_module("layerscope.cli")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"layerscope.cli.{module.name}")


def main() -> None:
    """Run the command line; a user's mistake is one message on stderr and exit code 1, an interruption is 130."""
    _load_commands()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "urllib3", "transformers", "huggingface_hub", "filelock", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        app()
    except LayerscopeError as error:
        print(f"layerscope: {error}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as leaving:  # typer turns Ctrl-C into this
        if leaving.code == 130:
            print("layerscope: stopped. What was finished is kept: run the same command again to go on.", file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(0)
