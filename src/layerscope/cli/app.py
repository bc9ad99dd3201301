"""The `layerscope` command: its subcommands in the order of a user's story, and how errors reach
the user."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from layerscope import terminal
from layerscope.cache import cache_dir
from layerscope.cli.shared import expand
from layerscope.errors import LayerscopeError, os_advice, printable
from layerscope.version import VERSION

# The panels of `layerscope --help`, and the commands of each in the order in which a user meets
# them.
STORY = {
    "Start here": (
        "improve",
        "compare",
        "embed",
        "search",
        "profile",
        "evaluate",
        "select",
        "export",
        "report",
    ),
    "Look": ("probe",),
    "Keep": (
        "list",
        "verify",
        "doctor",
    ),
}
EXAMPLES: dict[str, str] = {}


class Plain:
    """What commands and groups share: help without types for flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with types as a help text needs them: a flag takes no value, a repeatable
        option one at a time."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            if one.metavar is None and (
                getattr(one, "is_flag", False) or getattr(one, "multiple", False)
            ):
                one.metavar = "" if getattr(one, "is_flag", False) else "<str>"
        return parameters


class PlainCommand(Plain, TyperCommand):
    """A command."""


class StoryGroup(Plain, TyperGroup):
    """Commands in the order of the story; a command that the story does not name comes last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every command, in order."""
        order = [name for names in STORY.values() for name in names]
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: order.index(name) if name in order else len(order))


app = typer.Typer(
    name="layerscope",
    cls=StoryGroup,
    help="What every layer of a neural network holds, and which layer to read embeddings from.\n\n"
    '"The paper" is Layer by Layer (Skean et al., ICML 2025).',
    epilog="Example:\n\nlayerscope improve smollm2-135m --data reviews.csv --column text --out better",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(name: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command. Its help ends with an example that runs; option groups stand for their
    options."""
    EXAMPLES[name] = example
    lines = "\n\n".join(line.strip() for line in example.strip().splitlines())

    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=PlainCommand, epilog=f"Example:\n\n{lines}")(expand(function))
        return function

    return add


def _version(value: bool) -> None:
    if value:
        print(f"layerscope {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Options of the whole command."""


def load_commands() -> None:
    """Import every file of this folder: each adds its commands. Adding a command is adding a
    file."""
    package = importlib.import_module("layerscope.cli")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"layerscope.cli.{module.name}")
    registered: list[Any] = [*app.registered_commands, *app.registered_groups]
    for known in registered:
        known.rich_help_panel = next(
            (panel for panel, names in STORY.items() if known.name in names), "More"
        )


@functools.cache
def _commands() -> Any:
    """All commands with their parameters: building them takes as long as a quick command, and every
    message asks for them."""
    return typer.main.get_command(app)


# A parameter in a message of the library: `max_length=`, `max_length=64`, `judge='none'`,
# `overwrite=True`
_PARAMETER = re.compile(r"""(?<![\w?&./'"=-])([a-z][a-z_]*)=(True\b|'[^']*'|(?=[\s.,;:)]|$))?""")
_BARE = re.compile(
    r"""(?<![\w?&./'"=`-])([a-z]+(?:_[a-z]+)+)(?![\w='"/(`.]\w?)"""
)  # `max_length` without a value


def with_flags(message: str, words: list[str]) -> str:
    """A message of the library, which names parameters, with the flags of the command that was run
    instead.

    >>> load_commands()
    >>> with_flags("raise max_length=, or give judge='none' or overwrite=True", ["improve", "gpt2"])
    'raise --max-length, or give --judge none or --overwrite'
    >>> with_flags("max_length must be at least 1", ["improve"])
    '--max-length must be at least 1'
    """
    found = _commands()
    for word in words:
        found = getattr(found, "commands", {}).get(word, found)
    flags = {
        one.name: max(one.opts, key=len)
        for one in getattr(found, "params", ())
        if max(one.opts).startswith("-")
    }
    flags |= {"adapters": "--adapter"} if "adapter" in flags else {}

    def flag(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if name not in flags:
            return match[0]
        shown = "" if value in ("", "True") else " " if value is None else f" {value[1:-1]}"
        return flags[name] + shown

    return _BARE.sub(lambda match: flags.get(match[1], match[0]), _PARAMETER.sub(flag, message))


class _WithFlags(logging.Formatter):
    """Log lines as a user of the command line reads them."""

    def format(self, record: logging.LogRecord) -> str:
        return with_flags(super().format(record), sys.argv[1:])


_STOPPED = "layerscope: stopped. Finished work is kept: run the same command again to resume."


def main() -> None:
    """Run the command line; a user's mistake is one message on stderr and exit code 1, an
    interruption is 130."""
    try:
        _main()
    except KeyboardInterrupt:  # before typer is there to take it, or after it has gone
        print(_STOPPED, file=sys.stderr)
        sys.exit(130)
    finally:
        terminal.said_as(str)


def _main() -> None:
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # a terminal that cannot show a sign gets its code, not an error
        if (
            isinstance(stream, io.TextIOWrapper)
            and stream.encoding.lower().replace("-", "") != "utf8"
        ):
            stream.reconfigure(errors="backslashreplace")
    load_commands()
    # only our own lines: whatever a library is called, its requests and retries are not what a user
    # asked for
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_WithFlags("%(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    terminal.said_as(lambda text: with_flags(text, sys.argv[1:]))
    logging.getLogger("layerscope").setLevel(logging.INFO)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if {"-q", "--quiet", "--json"}.intersection(sys.argv):
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        _commands()(prog_name="layerscope")
    except LayerscopeError as error:
        print(f"layerscope: {with_flags(str(error), sys.argv[1:])}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as leaving:  # typer turns Ctrl-C into this
        if leaving.code == 130:
            print(_STOPPED, file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:  # a defect of ours, or an unforeseen input
        if os.environ.get("LAYERSCOPE_DEBUG"):
            raise
        print(f"layerscope: {_unexpected(error)}", file=sys.stderr)
        sys.exit(1)


def _unexpected(error: Exception) -> str:
    """One line about an unforeseen error. Its traceback goes to a file for a bug report."""
    first = next(iter(str(error).splitlines()), "")[:300]
    if advice := os_advice(error):
        return f"{advice} ({first})" if first else advice
    where = "set LAYERSCOPE_DEBUG=1 to see where"
    with contextlib.suppress(OSError, LayerscopeError):
        file = cache_dir() / "last-error.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "".join(traceback.format_exception(error)), encoding="utf-8", errors="backslashreplace"
        )
        where = f"the details are in {file}"
    return printable(
        f"unexpected {type(error).__name__}: {first}. Something in the input may be damaged, or this is a defect: {where}. "
        "`layerscope doctor` checks the installation."
    )
