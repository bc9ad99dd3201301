"""Options that several commands share, how their values are read, and how results are printed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from layerscope.core.options import EngineOptions, ModelOptions, parse_size, split_names
from layerscope.core.runs import folder_name
from layerscope.errors import InvalidValueError, UnknownNameError, one_line

# Panels of `layerscope --help`, in the order in which a user meets their commands.
START = "Start here"
LOOK = "Look"
KEEP = "Keep"

TEXTS = "File, folder, corpus or hub dataset."


def parse_list(text: str | None) -> Any:
    """Return the names of a comma-separated list, or None without a list."""
    if text is None:
        return None
    names = split_names(text)
    if not names:
        raise InvalidValueError(f"expected a comma-separated list of names, got {text!r}.")
    return names


def parse_layers(text: str | None) -> Any:
    """Return the layers of a comma-separated list, or None without a list."""
    if text is None:
        return None
    try:
        return [int(name) for name in parse_list(text)]
    except ValueError:
        raise InvalidValueError(
            f"--layers takes whole numbers separated by commas, not {text!r}."
        ) from None


def check_data(data: str | None) -> str | None:
    """Refuse data that do not exist, before anything large is imported."""
    from layerscope.data.corpus import refuse_missing

    refuse_missing(data)
    return data


def flag(name: str, help: str) -> Any:
    """Return an option without a value."""
    return typer.Option(name, metavar="", help=help)


Model = Annotated[str, typer.Argument(help="Name, hub id (org/name@revision), folder or .gguf.")]
Data = Annotated[str, typer.Option("--data", "-d", callback=check_data, help=TEXTS)]
Column = Annotated[str | None, typer.Option(help="Column of the texts.")]
Layers = Annotated[
    str | None, typer.Option(callback=parse_layers, help="Layers, e.g. 0,5,-1. (default: all)")
]
MaxLength = Annotated[int, typer.Option(help="Tokens read of a text.")]
Labels = Annotated[str | None, typer.Option(help="File: text,label or sentence1,sentence2,score.")]
NoTexts = Annotated[bool, flag("--no-texts", "Keep and show none of your texts.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Place to write to.")]
RunFolder = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder of the run. (default: in runs/)")
]

KeyValues = list[str] | None
_SETTING = typer.Option("--option", metavar="KEY=VALUE", help="Another keyword of the function.")
_LOADING = typer.Option(metavar="KEY=VALUE", help="Keyword of load, e.g. dtype=auto.")
OPTIONS: dict[str, tuple[Any, Any]] = {
    "option": (Annotated[KeyValues, _SETTING], None),
    "device": (Annotated[str | None, typer.Option(help="cpu, cuda or mps.")], None),
    "model_option": (Annotated[KeyValues, _LOADING], None),
    "engine": (Annotated[str, typer.Option(help="local, or ray:workers=4.")], "local"),
    "overwrite": (Annotated[bool, flag("--overwrite", "Replace another result there.")], False),
    "as_json": (Annotated[bool, flag("--json", "Print JSON instead of tables.")], False),
}
"""The options that commands share, with their defaults."""

RUN = tuple(OPTIONS)
"""The shared options of a command that runs a model and writes."""

LOOKUP = tuple(name for name in OPTIONS if name != "overwrite")
CUT = tuple(name for name in OPTIONS if name != "engine")


def keywords(context: typer.Context, *own: str) -> dict[str, Any]:
    """Return the keywords of a command's function: the options that are set but for the command's
    `own`, those of `--option`, how the model is loaded, and where it runs."""
    params = context.params
    values = {
        name: value
        for name, value in params.items()
        if value not in (None, [], ()) and name not in (*own, *_READ_HERE)
    }
    for name, text in _pairs(params.get("option"), "--option"):
        if name in params:
            flag = name.replace("_", "-")
            raise InvalidValueError(f"{name} has an option of its own: --{flag} {text}.")
        values[name] = _value(text)
    if params.get("no_texts"):
        values["texts"] = False
    for name, text in _pairs(params.get("model_option"), "--model-option"):
        if name not in ModelOptions.names():
            raise UnknownNameError("model option", name, ModelOptions.names())
        if name == "adapters":
            values[name] = [*values.get(name, ()), text]
        else:
            values[name] = {"true": True, "false": False}.get(text, text)
    if "engine" in params:
        values["engine"], _, settings = params["engine"].partition(":")
        for key, text in _pairs(split_names(settings), "--engine"):
            if key not in EngineOptions.names():
                raise UnknownNameError("setting of --engine", key, EngineOptions.names())
            values[key] = _value(text)
        # by default a bar is shown where a person looks
        values["progress"] = False if params["as_json"] else None
    return values


_READ_HERE = ("option", "model_option", "engine", "as_json", "no_texts")


def _pairs(texts: list[str] | None, option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InvalidValueError(f"{option} takes KEY=VALUE, not {text!r}.")
        pairs.append((name.strip().replace("-", "_"), value.strip()))
    return pairs


def _value(text: str) -> bool | int | float | str:
    """Return the value of a setting.

    >>> [_value(text) for text in ("4", "0.5", "1KB", "true", "unit")]
    [4, 0.5, 1024, True, 'unit']
    """
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"\d+(\.\d+)?[KMGT]B", text):
        return parse_size(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def default_folder(*words: str, limit: int | None = None) -> Path:
    """Return the folder of a run for which the user names none.

    >>> default_folder("gpt2", "lee", limit=50).name
    'gpt2--lee--n50'
    """
    names = [folder_name(word) for word in words]
    if limit is not None:
        names.append(f"n{limit}")
    return Path("runs") / "--".join(names)


def show(
    context: typer.Context,
    value: Any,
    print_tables: Callable[[], Any],
    next_step: str,
    written: str = "",
) -> None:
    """Print a result as JSON, or as tables, its place and the next command (both on stderr)."""
    if context.params["as_json"]:
        from layerscope.store.atomic import plain

        print(json.dumps(plain(value), indent=2, ensure_ascii=False))
        return
    print_tables()
    if written:
        print(one_line(f"Written to {written}"), file=sys.stderr)
    print(one_line(f"Next: {next_step}"), file=sys.stderr)


def show_run(context: typer.Context, run: Any, next_step: str, also: str = "") -> None:
    """Print a finished run, its files and the next command."""
    from layerscope.core.runs import view

    tables = [
        f"{name}.{end}"
        for name in run.files
        for end in ("csv", "parquet")
        if (run.path / f"{name}.{end}").is_file()
    ]
    files = ", ".join([*tables, *([also] if also else []), "manifest.json"])
    show(
        context,
        run.summary(),
        lambda: view(run.kind, "print")(run),
        next_step,
        written=f"{run.path}: {files}",
    )


def shell_quote(*words: object) -> str:
    """Return words as they stand in a command line."""
    return shlex.join(str(word) for word in words)
