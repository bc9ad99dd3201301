"""`layerscope select` and `export`: which layer to read, and the model cut there as a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import (
    CHOICE,
    DATA,
    MODELS,
    RESULT,
    option,
    parse_list,
)
from layerscope.core.runs import MARKER
from layerscope.errors import LayerscopeError, one_line, printable


@command("select", "layerscope select runs/scores")
def select_command(
    output: shared.Printing,
    runs: list[str] = typer.Argument(
        None, help="Folder of a profile, an evaluation, or one of each; with --labels also a model."
    ),
    labels: str | None = option(
        None,
        panel=DATA,
        help="A .csv, .tsv or .jsonl file with text,label or sentence1,sentence2,label|score.",
    ),
    readouts: str | None = option(
        None, panel=DATA, help="With scores or labels: consider only these readouts."
    ),
    rule: str | None = option(
        None,
        panel=CHOICE,
        help="measured (by scores), evidence (by a profile), last, fixed_depth[:0.8] or lowest_METRIC. "
        "(default: measured, else evidence)",
    ),
    max_blocks: float | None = option(
        None, panel=CHOICE, help="Use at most this share of the blocks, e.g. 0.5."
    ),
    tolerance: float | None = option(
        None,
        panel=CHOICE,
        help="Points of score that an earlier layer may lose. (default with --max-blocks: 1, or a tie)",
    ),
    seed: int = shared.seed_option("Seed of resampling and folds.", CHOICE),
    offline: bool = shared.OFFLINE,
) -> None:
    """Choose the layer to read embeddings from: by a profile, by measured scores, or by a few
    labels."""
    common: dict[str, Any] = {
        "readouts": parse_list(readouts),
        "max_blocks": max_blocks,
        "tolerance": tolerance,
        "seed": seed,
    }
    if labels is None:
        from layerscope.selection import select

        choice = select(*(runs or []), rule=rule, **common)
    else:
        from layerscope.errors import LayerscopeError
        from layerscope.selection.labels import select_with_labels

        if len(runs or []) != 1 or rule is not None:
            raise LayerscopeError(
                "--labels takes one model or the folder of one run, without --rule."
            )
        choice = select_with_labels(
            runs[0], labels, **common, offline=offline, progress=output.progress
        )
    output.show(choice.as_dict(), lambda: _print_choice(choice), then=_then(choice, runs or []))


def _print_choice(choice: Any) -> None:
    from rich.markup import escape

    from layerscope.selection import lines
    from layerscope.terminal import Console, print_facts

    console = Console()
    console.print(escape(choice.headline()), highlight=False, style="bold")
    print_facts(console, lines(choice))


def _then(choice: Any, runs: list[str]) -> str:
    """The export of this choice."""
    from layerscope.core.readout import Readout
    from layerscope.exporting.draft import nearest

    then = f"layerscope export {shared.shell_quote(choice.model or 'MODEL')} --layer {choice.layer}"
    if choice.readout:
        readout = nearest(Readout.parse(choice.readout))  # export takes no other, and says why
        then += f" --readout {shared.shell_quote(readout.name)}"
        if readout.centering != "none":
            then += f" --center-on {shared.shell_quote(choice.center_on or 'YOUR_TEXTS')}"
    return then


@command("export", "layerscope export smollm2-135m --choice runs/scores --out exports/small")
def export_command(
    loading: shared.Loading,
    output: shared.Output,
    model: str = shared.MODEL,
    layer: int | None = typer.Option(
        None,
        "--layer",
        "-l",
        rich_help_panel=MODELS,
        help="Layer to export; -1: the last. (default: chosen by --choice)",
    ),
    readout: str | None = option(
        None,
        "--readout",
        panel=MODELS,
        help="How a text becomes one vector: template/pooling/norm/sink/centering. "
        "(default: chosen by --choice, or plain/mean/applied)",
    ),
    choice: Path | None = option(
        None,
        "--choice",
        panel=DATA,
        help="Evaluation, profile or `select --json` file that decides the layer and the readout.",
    ),
    center_on: str | None = option(
        None, "--center-on", panel=DATA, help="Corpus or file of texts whose mean is subtracted."
    ),
    column: str | None = option(
        None, "--column", panel=DATA, help="Column of the texts in the --center-on file."
    ),
    max_length: int | None = shared.length_option(None, " (default: the run's, or 256)"),
    normalize: bool | None = option(
        None,
        "--normalize/--no-normalize",
        panel=DATA,
        help="Scale vectors to length 1. (default: as in the run or the model's own pipeline)",
    ),
    formats: list[str] = option(
        [],
        "--format",
        panel=RESULT,
        help="Also write this format: onnx, gguf, or one of a plug-in; repeatable.",
    ),
    out: Path | None = shared.out_option("Folder to write. (default: exports/MODEL)"),
    push: str | None = option(
        None,
        "--push",
        panel=RESULT,
        help="Send the folder to the hub as user/name, private; an exported MODEL as it is.",
    ),
    public: bool = option(
        False, "--public", panel=RESULT, help="With --push: let everybody read it."
    ),
    yes: bool = option(False, "--yes", panel=RESULT, help="With --push: do not ask first."),
    offline: bool = shared.OFFLINE,
) -> None:
    """Cut a model at a layer and save it as a sentence-transformers folder, verified in a fresh
    process."""
    from layerscope.exporting import Exported, export

    asked: dict[str, Any] = {
        "readout": readout, "out": out, "center_on": center_on, "column": column, "max_length": max_length,
        "normalize": normalize, "formats": formats or None,
    }  # fmt: skip
    given = {name: value for name, value in asked.items() if value is not None}
    if push is not None:
        _check_push(push, yes, offline)
    if push is not None and layer is None and choice is None and (Path(model) / MARKER).is_file():
        for name in {**given, **loading.as_dict()}:
            raise LayerscopeError(
                f"{model} is an export, and is pushed as it is, without {name}=. To export it anew: layer=."
            )
        _push(Exported.load(model), push, public, yes, output)
        return
    done = export(
        model,
        layer,
        choice=choice,
        overwrite=output.overwrite,
        offline=offline,
        **loading.as_dict(),
        **given,
    )
    from layerscope.exporting.describing import print_export

    folder = done.path
    if push is not None:
        _push(done, push, public, yes, output)
        return
    output.show(
        {"out": str(folder), **done.facts},
        lambda: print_export(done.facts),
        f"{folder}: open README.md there, or SentenceTransformer({str(folder)!r})",
        f"layerscope verify {shared.shell_quote(folder)}",
    )


def _check_push(repo: str, yes: bool, offline: bool) -> None:
    """Raise, before any work, where nothing could be sent."""
    from layerscope.exporting.pushing import check_address, check_token

    if offline:
        raise LayerscopeError("push= sends to the hub, and offline= forbids it. Give one of them.")
    if not yes and not sys.stdin.isatty():
        raise LayerscopeError(
            "push= asks before it sends, and nobody can answer here. To send without a question: yes=True."
        )
    check_address(repo)
    check_token()


def _push(done: Any, repo: str, public: bool, yes: bool, output: shared.Output) -> None:
    """Say what would go where, and send it once somebody agrees."""
    from layerscope.exporting.pushing import pack, push

    parcel = pack(done.path, repo, public)
    print(one_line(f"To send: {parcel}"), file=sys.stderr)
    if not yes and not typer.confirm("Send it?", err=True):
        raise LayerscopeError(f"nothing was sent. The folder is {done.path}.")
    where = push(parcel)
    output.tell(
        {"out": str(done.path), "url": where, **done.facts}, where, f"SentenceTransformer({repo!r})"
    )


@command("verify", "layerscope verify exports/small")
def verify_command(
    output: shared.Listing,
    folder: Path = typer.Argument(..., help="Exported folder."),
    servers: str | None = option(
        None,
        "--for",
        panel=RESULT,
        help="Show what keeps these programs from opening the folder, comma-separated: "
        "sentence-transformers, onnx, tei, tei-gpu, vllm, llama.cpp, or all.",
    ),
) -> None:
    """Compare every file of an exported folder with its checksum; with --for, check which programs
    open it. Exit code 2: something is damaged or in the way."""
    from layerscope.store.records import check_files

    if servers is not None:
        _check_servers(output, folder, servers)
        return
    if not (folder / MARKER).is_file():
        raise LayerscopeError(f"{folder} is not an export: there is no {MARKER} in it.")
    checks = list(check_files(folder))
    damaged = [(path, problem) for path, problem in checks if problem]

    def printed() -> None:
        for path, problem in damaged:
            print(printable(f"damaged  {path}: {problem}"))
        print(f"{len(checks)} files: {len(checks) - len(damaged)} ok, {len(damaged)} damaged")

    listed = [{"path": path, "reason": problem} for path, problem in damaged]
    then = "run the command that wrote it again, with --overwrite" if damaged else ""
    output.show({"files": len(checks), "damaged": listed}, printed, then=then)
    if damaged:
        raise typer.Exit(2)


def _check_servers(output: shared.Listing, folder: Path, names: str) -> None:
    """Show which programs open a sentence-transformers folder."""
    from layerscope.exporting.servers import SERVERS, check_servers

    if not (folder / "modules.json").is_file():
        raise LayerscopeError(
            f"{folder} is not a sentence-transformers folder: there is no modules.json in it."
        )
    problems = check_servers(folder, None if names == "all" else parse_list(names))

    def printed() -> None:
        for name, found in problems.items():
            print(
                printable(f"{SERVERS[name].title}: {'does not open it' if found else 'opens it'}")
            )
            for problem in found:
                print(printable(f"  {problem}"))
        print("By the programs' sources; none was started.")

    output.show({"servers": problems}, printed)
    if any(problems.values()):
        raise typer.Exit(2)
