"""What several commands share: options and groups of options, how their values are read, and how
results are shown."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import typer
from typer.models import OptionInfo

from layerscope.core.formatting import split_names
from layerscope.core.runs import folder_name
from layerscope.errors import LayerscopeError, one_line


def parse_list(text: str | None) -> list[str] | None:
    """A comma-separated list, or None where nothing was given."""
    if text is None:
        return None
    parts = split_names(text)
    if not parts:
        raise LayerscopeError(f"expected a comma-separated list of names, got {text!r}.")
    return parts


def readout_names(given: list[str]) -> list[str] | None:
    """Readouts from a repeatable option: comma-separated, except that a value with a pattern of the
    user's own is taken whole.

    >>> readout_names(["one-word,echo", "In short, {text}/mean"])
    ['one-word', 'echo', 'In short, {text}/mean']
    """
    names = [
        name
        for value in given
        for name in ([value] if "{text}" in value else parse_list(value) or [])
    ]
    return names or None


def parse_number(text: str | None, name: str) -> float | None:
    """A number, `inf` included, or None where nothing was given."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise LayerscopeError(f"--{name} takes a number (or inf), not {text!r}.") from None


def parse_whole_numbers(text: str | None, name: str) -> list[int] | None:
    """A comma-separated list of whole numbers, or None where nothing was given."""
    parts = parse_list(text)
    if parts is None:
        return None
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise LayerscopeError(
            f"--{name} takes whole numbers separated by commas, not {text!r}."
        ) from None


def parse_settings(texts: list[str] | None) -> dict[str, Any]:
    """Settings given as KEY=VALUE, their numbers as numbers."""
    settings: dict[str, Any] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise LayerscopeError(f"--option takes KEY=VALUE, not {text!r}.")
        settings[name.strip().replace("-", "_")] = _number_or_text(value.strip())
    return settings


def _number_or_text(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def default_folder(*parts: str, limit: int | None = None) -> Path:
    """Where a run goes when the user names no folder: `runs/` and what it is about; runs of
    different size do not meet there.

    >>> default_folder("gpt2", "lee", limit=50).name
    'gpt2--lee--n50'
    """
    return Path("runs") / "--".join(
        [*map(folder_name, parts), *([] if limit is None else [f"n{limit}"])]
    )


DATA, MODELS, CHOICE, METRICS, ENGINES, RESULT = (
    "Data",
    "Model",
    "Choice",
    "Metrics",
    "Engine",
    "Output",
)
_PANELS = [
    None,
    DATA,
    MODELS,
    CHOICE,
    METRICS,
    ENGINES,
    RESULT,
]  # in the order of a command's help


def option(
    default: Any, *names: str, panel: str, help: str, read: Callable[[Any], Any] | None = None
) -> Any:
    """An option in one of the panels of a command's help, called as its parameter; `names` are
    short or other names.

    `read` makes its value of what was typed.
    """
    return typer.Option(
        default,
        *names,
        help=help,
        rich_help_panel=panel,
        callback=None if read is None else _reader(read),
    )


def _reader(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def callback(value: Any) -> Any:  # typer looks at the names of its parameters
        return read(value)

    return callback


def data_option(default: Any, help: str) -> Any:
    """What a model reads."""
    return option(default, "-d", panel=DATA, help=help, read=existing_data)


def existing_data(given: str | None) -> str | None:
    """Refuse data that are neither there nor a known name, before anything large is imported."""
    from layerscope.data.corpus import refuse_missing

    if given is not None:
        refuse_missing(given)
    return given


def size_option(help: str) -> Any:
    """How many items are used: the first (`limit`), or some drawn at random (`sample`)."""
    return option(None, "-n", panel=DATA, help=help)


def layers_option(panel: str, verb: str) -> Any:
    """Which layers are read."""
    said = f"Layers to {verb}, e.g. 0,5,-1. (default: all)"
    return option(
        None, panel=panel, help=said, read=lambda text: parse_whole_numbers(text, "layers")
    )


def out_option(help: str, default: Any = None) -> Any:
    """Where a result is written."""
    return option(default, "-o", panel=RESULT, help=help)


def length_option(default: int | None, help: str = "") -> Any:
    """How long texts may be."""
    return option(default, panel=DATA, help="Truncate texts to this many tokens." + help)


def norm_option(default: str | None, help: str = "") -> Any:
    """What happens to states before they are measured."""
    said = "Apply the final norm at every layer (applied), at none (raw) or at the last only (hf)."
    return option(default, panel=METRICS, help=said + help)


def seed_option(help: str, panel: str = METRICS) -> Any:
    """Where randomness begins."""
    return option(0, panel=panel, help=help)


MODEL = typer.Argument(
    ..., help="Catalogue name, hub id (org/name@revision), folder, or .gguf file."
)
OFFLINE = option(
    False, panel=ENGINES, help="Download nothing; fail at once if something is missing."
)
DATA_DIR_HELP = "Folder with the data of tasks: <Task>/<split>.jsonl.gz with MTEB's columns."
DATA_HELP = "Corpus name, .txt/.jsonl/.csv/.parquet file, or hub dataset."
TEXTS_HELP = "Your texts: a file (.csv, .jsonl, .parquet, .txt, .xlsx), a folder of documents, a corpus or a hub dataset."
ENCODING_HELP = "Encoding of a text file, such as latin-1. (default: utf-8)"


class CommandOptions:
    """Options that go together. A command with a parameter of such a class has its options, and
    gets an object of values."""

    fields: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        inherited = getattr(cls, "fields", {})
        cls.fields = {
            **inherited,
            **{
                name: vars(cls)[name]
                for name in vars(cls).get("__annotations__", {})
                if name in vars(cls)
            },
        }

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def given(self) -> dict[str, Any]:
        """The options that were given or have a default, by name."""
        return {name: value for name in self.fields if (value := getattr(self, name)) is not None}


class Loading(CommandOptions):
    """How a model is loaded."""

    dtype: str | None = option(
        None,
        panel=MODELS,
        help="float32 (default), bfloat16, float16, or auto (the checkpoint's own).",
    )
    device: str | None = option(
        None, panel=MODELS, help="cpu, cuda or mps. (default: cuda if available)"
    )
    device_map: str | None = option(
        None, panel=MODELS, help="auto: distribute a large model over several GPUs."
    )
    revision: str | None = option(None, panel=MODELS, help="Revision of a hub model.")
    family: str | None = option(
        None,
        panel=MODELS,
        help="Read the model as one of this architecture family. (default: detected)",
    )
    bidirectional: bool = option(
        False, panel=MODELS, help="Use bidirectional attention in a decoder (LLM2Vec)."
    )
    adapter: list[str] = option(
        [], panel=MODELS, help="PEFT adapter to merge: folder or hub id; repeatable."
    )
    trust_remote_code: bool = option(
        False, panel=MODELS, help="Allow the model to run its own Python code."
    )
    allow_pickle: bool = option(False, panel=MODELS, help="Allow weights in pickle format.")

    def as_dict(self) -> dict[str, Any]:
        """What was given, as `layerscope.load` takes it."""
        return {
            "adapters" if name == "adapter" else name: value
            for name, value in self.given().items()
            if value
        }


class Running(CommandOptions):
    """Where the model runs, how many items it reads at once, and how much of a GPU's memory it may
    use."""

    engine: str = option(
        "local", panel=ENGINES, help="local (this process) or ray (workers of a Ray cluster)."
    )
    address: str | None = option(
        None,
        panel=ENGINES,
        help="Address of the Ray cluster: HOST:6379, or auto on one of its machines.",
    )
    workers: int | None = option(
        None,
        panel=ENGINES,
        help="Number of Ray workers; each loads the model. (default: one per GPU, or per core)",
    )
    gpus_per_worker: float | None = option(
        None, panel=ENGINES, help="GPUs per Ray worker. (default: 1 if available)"
    )
    offline: bool = OFFLINE
    batch_size: int | None = option(
        None, panel=ENGINES, help="Maximum items per batch. (default: automatic)"
    )

    def as_dict(self) -> dict[str, Any]:
        """What was given, as the functions of the library take it."""
        return self.given()


TEXTS = option(
    True,
    "--texts/--no-texts",
    panel=RESULT,
    help="Whether your texts may be kept and shown.",
)


class Listing(CommandOptions):
    """How a result is printed."""

    as_json: bool = option(
        False, "--json", panel=RESULT, help="Print the result as JSON instead of tables."
    )
    quiet = False

    @property
    def silent(self) -> bool:
        """Whether only the result is printed, without tables and hints."""
        return self.quiet or self.as_json

    @property
    def progress(self) -> bool | None:
        """Whether a progress bar is shown; None: where a person looks."""
        return False if self.silent else None

    def show(
        self, value: Any, printer: Callable[[], Any], written: str = "", then: str = ""
    ) -> None:
        """A result as JSON or as tables, then where it is and what comes next (both on stderr)."""
        if self.as_json:
            print_json(value)
        elif not self.quiet:
            printer()
            if written:
                print(one_line(f"Written to {written}"), file=sys.stderr)
            next_step(then)


class Printing(Listing):
    """How a result is printed, or that it is not."""

    quiet: bool = option(
        False, "--quiet", "-q", panel=RESULT, help="No progress bar and no tables."
    )

    def tell(self, value: Any, place: Any, then: str) -> None:
        """A result that is a file or an address: as JSON, or the place alone; what comes next
        unless that is not asked for."""
        if self.as_json:
            print_json(value)
            return
        print(place)
        if not self.quiet:
            next_step(then)


class Output(Printing):
    """What is printed, and whether an earlier result may be replaced."""

    overwrite: bool = option(
        False, panel=RESULT, help="Replace a different run in the same folder."
    )

    def as_dict(self) -> dict[str, Any]:
        """As the functions of the library take it."""
        return {"overwrite": self.overwrite, "progress": self.progress}

    def show_run(self, run: Any, then: str, also: str = "") -> None:
        """A finished run: its summary, its files (and those that are there `also`), and what comes
        next."""
        from layerscope.core.runs import view

        tables = [
            f"{name}.{end}"
            for name in run.files
            for end in ("csv", "parquet")
            if (run.path / f"{name}.{end}").is_file()
        ]
        files = ", ".join([*tables, *([also] if also else []), "manifest.json"])
        self.show(run.summary(), lambda: view(run.kind, "print")(run), f"{run.path}: {files}", then)


def as_arguments(loading: Loading, running: Running, output: Output) -> dict[str, Any]:
    """How models are loaded, where they run and what is shown, as every function of the library
    takes it."""
    return {**loading.as_dict(), **running.as_dict(), **output.as_dict()}


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer reads it: an option group stands for its options, and options are in
    the order of their panels."""
    hints = get_type_hints(function)
    signature = inspect.signature(function)
    groups = {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, CommandOptions)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        members, kinds = {name: parameter.default}, hints
        if name in groups:
            members, kinds = groups[name].fields, get_type_hints(groups[name])
        for member, default in members.items():
            keyword = inspect.Parameter.KEYWORD_ONLY
            if isinstance(default, OptionInfo) and not any(
                name.startswith("--") for name in default.param_decls or ()
            ):
                default.param_decls = (
                    f"--{member.replace('_', '-')}",
                    *(default.param_decls or ()),
                )
            parameters.append(
                inspect.Parameter(member, keyword, default=default, annotation=kinds[member])
            )
    parameters.sort(key=lambda one: _PANELS.index(getattr(one.default, "rich_help_panel", None)))

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{member: values.pop(member) for member in group.fields})
        function(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {"return": None, **{one.name: one.annotation for one in parameters}}
    del run.__wrapped__  # typer would look through it
    return run


def print_json(value: Any) -> None:
    """A value on stdout, as JSON for people and programs."""
    from layerscope.store.atomic import plain

    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def next_step(then: str) -> None:
    """What a user will want to do now, on stderr."""
    if then:
        print(one_line(f"Next: {then}"), file=sys.stderr)


def shell_quote(*words: str | Path) -> str:
    """Names or paths as words of a command line."""
    import shlex

    return " ".join(shlex.quote(str(word)) for word in words)
