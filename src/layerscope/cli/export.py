"""`layerscope select`, `export` and `verify`: which layer to read, and the model cut there as a
folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from layerscope.catalogue import is_offline
from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.core.runs import MARKER
from layerscope.errors import LayerscopeError, one_line, printable


@command("select", shared.START, "layerscope select runs/scores")
def select_command(
    context: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Folder of a profile, an evaluation, or both; with --labels a model."),
    ] = None,
    labels: shared.Labels = None,
    readouts: Annotated[
        str | None, typer.Option(callback=shared.parse_list, help="Consider only these readouts.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="measured, evidence or lowest_METRIC."),
    ] = None,
    max_blocks: Annotated[
        float | None, typer.Option(help="Largest share of the blocks, e.g. 0.5.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Points of score that an earlier layer may lose.")
    ] = None,
) -> None:
    """Choose the layer to read embeddings from: by a profile, by measured scores, or by a few
    labels."""
    from layerscope.choose.select import select

    options = shared.keywords(context, "runs")
    if labels is not None and context.params["as_json"]:
        options["progress"] = False
    choice = select(*(runs or []), **options)
    words = _export_command(choice)
    shared.show(context, choice.as_dict(), lambda: _print_choice(choice), words)


def _print_choice(choice: Any) -> None:
    from rich.markup import escape

    from layerscope.choose.choice import lines
    from layerscope.terminal import Console, print_facts

    console = Console()
    console.print(escape(choice.headline()), highlight=False, style="bold")
    print_facts(console, lines(choice))


def _export_command(choice: Any) -> str:
    """Return the command that exports this choice."""
    from layerscope.core.readout import Readout
    from layerscope.exporting.draft import nearest

    words = ["layerscope", "export", choice.model or "MODEL", "--layer", str(choice.layer)]
    if choice.readout:
        readout = nearest(Readout.parse(choice.readout))
        words += ["--readout", readout.name]
        if readout.centering != "none":
            words += ["--center-on", choice.center_on or "YOUR_TEXTS"]
    return shared.shell_quote(*words)


@command(
    "export",
    shared.START,
    "layerscope export smollm2-135m --choice runs/scores --out exports/small",
    shared.CUT,
)
def export_command(
    context: typer.Context,
    model: shared.Model,
    layer: Annotated[
        int | None, typer.Option("--layer", "-l", help="Layer; -1: the last. (default: --choice)")
    ] = None,
    readout: Annotated[
        str | None, typer.Option(help="template/pooling/norm/sink/centering. (default: --choice)")
    ] = None,
    choice: Annotated[
        Path | None, typer.Option(help="Run or `select --json` file that decides the layer.")
    ] = None,
    center_on: Annotated[
        str | None, typer.Option(help="Corpus or file whose mean is subtracted.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens read of each text. (default: the run's, or 256)")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Also write onnx, gguf, …"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write. (default: in exports/)")
    ] = None,
    push: Annotated[
        str | None, typer.Option(help="Send it to the hub as user/name; an export: as it is.")
    ] = None,
    public: Annotated[bool, shared.flag("--public", "Let everybody read it there.")] = False,
    yes: Annotated[bool, shared.flag("--yes", "Send without asking first.")] = False,
) -> None:
    """Cut a model at a layer and save it as a sentence-transformers folder, verified in a fresh
    process."""
    from layerscope.exporting import Exported, export
    from layerscope.exporting.card import print_export

    settings = shared.keywords(context, "model", "layer", "choice", "push", "public", "yes")
    if push is not None:
        _check_push(push, yes)
        if layer is None and choice is None and (Path(model) / MARKER).is_file():
            names = [name for name in settings if name != "overwrite"]
            if names:
                raise LayerscopeError(
                    f"{model} is an export and is pushed as it is: leave out {names[0]}. "
                    "To export it anew, give a layer."
                )
            _push(context, Exported.load(model))
            return
    exported = export(model, layer, choice=choice, **settings)
    if push is not None:
        _push(context, exported)
        return
    folder = exported.path
    shared.show(
        context,
        {"out": str(folder), **exported.facts},
        lambda: print_export(exported.facts),
        f"layerscope verify {shared.shell_quote(folder)}",
        written=f"{folder}: open README.md there, or SentenceTransformer({str(folder)!r})",
    )


def _check_push(repo: str, yes: bool) -> None:
    """Raise an error, before any work, if nothing could be sent."""
    from layerscope.exporting.publishing import check_address, check_token

    if is_offline():
        raise LayerscopeError("--push sends to the hub, which HF_HUB_OFFLINE forbids.")
    if not yes and not sys.stdin.isatty():
        raise LayerscopeError(
            "--push asks before it sends, and nobody can answer here. Add --yes to send."
        )
    check_address(repo)
    check_token()


def _push(context: typer.Context, exported: Any) -> None:
    """Show what would be sent, ask, and send it."""
    from layerscope.exporting.publishing import pack, push

    repo = context.params["push"]
    parcel = pack(exported.path, repo, context.params["public"])
    print(one_line(f"To send: {parcel}"), file=sys.stderr)
    if not context.params["yes"] and not typer.confirm("Send it?", err=True):
        raise LayerscopeError(f"nothing was sent. The folder is {exported.path}.")
    url = push(parcel)
    facts = {"out": str(exported.path), "url": url, **exported.facts}
    shared.show(context, facts, lambda: print(url), f"SentenceTransformer({repo!r})")


@command("verify", shared.KEEP, "layerscope verify exports/small")
def verify_command(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Exported folder.")],
    servers: Annotated[
        str | None,
        typer.Option("--for", help="Programs that should open it, e.g. tei,vllm, or all."),
    ] = None,
) -> None:
    """Compare every file of an exported folder with its checksum; with --for, check which programs
    open it. Exit code 2: something is damaged or in the way."""
    from layerscope.store.checked import check_files

    if servers is not None:
        _check_servers(context, folder, servers)
        return
    if not (folder / MARKER).is_file():
        raise LayerscopeError(f"{folder} is not an export: there is no {MARKER} in it.")
    checks = list(check_files(folder))
    damaged = [{"path": path, "reason": problem} for path, problem in checks if problem]

    def print_damaged() -> None:
        for file in damaged:
            print(printable(f"damaged  {file['path']}: {file['reason']}"))
        print(f"{len(checks)} files: {len(checks) - len(damaged)} ok, {len(damaged)} damaged")

    next_step = (
        f"layerscope embed {shared.shell_quote(folder)} --data YOUR_TEXTS --out vectors.parquet"
    )
    if damaged:
        next_step = "run the command that wrote it again, with --overwrite"
    shared.show(context, {"files": len(checks), "damaged": damaged}, print_damaged, next_step)
    if damaged:
        raise typer.Exit(2)


def _check_servers(context: typer.Context, folder: Path, names: str) -> None:
    """Show which programs open a sentence-transformers folder."""
    from layerscope.exporting.servers import SERVERS, check_servers

    if not (folder / "modules.json").is_file():
        raise LayerscopeError(
            f"{folder} is not a sentence-transformers folder: there is no modules.json in it."
        )
    servers = list(SERVERS) if names == "all" else shared.parse_list(names) or []
    problems = check_servers(folder, servers)

    def print_problems() -> None:
        for name, reasons in problems.items():
            answer = "does not open it" if reasons else "opens it"
            print(printable(f"{SERVERS[name].title}: {answer}"))
            for reason in reasons:
                print(printable(f"  {reason}"))
        print("By the programs' sources; none was started.")

    next_step = "start one of the programs on this folder"
    if all(problems.values()):
        next_step = shared.shell_quote("layerscope", "verify", folder, "--for", "all")
    shared.show(context, {"servers": problems}, print_problems, next_step)
    if any(problems.values()):
        raise typer.Exit(2)
