"""`layerscope select`: which layer to read, how sure that is, and what it saves."""

from __future__ import annotations

from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import CHOICE, DATA, option, parse_list


@command("select", "layerscope select runs/scores")
def select_command(
    output: shared.Printing,
    runs: list[str] = typer.Argument(
        None, help="Folder of a profile, an evaluation, or one of each; with --labels also a model."
    ),
    atlas: str | None = option(
        None, panel=DATA, help="Use a published model instead of a run; `layerscope atlas models` lists them."
    ),
    labels: str | None = option(
        None, panel=DATA, help="A .csv, .tsv or .jsonl file with text,label or sentence1,sentence2,label|score."
    ),
    readouts: str | None = option(None, panel=DATA, help="With scores or labels: consider only these readouts."),
    rule: str | None = option(
        None,
        panel=CHOICE,
        help="measured (by scores), evidence (by a profile), last, fixed_depth[:0.8] or lowest_METRIC. "
        "(default: measured, else evidence)",
    ),
    budget: float | None = option(None, panel=CHOICE, help="Use at most this share of the blocks, e.g. 0.5."),
    tolerance: float | None = option(
        None, panel=CHOICE, help="Points of score that an earlier layer may lose. (default with --budget: 1, or a tie)"
    ),
    seed: int = shared.seed_option("Seed of resampling and folds.", CHOICE),
    offline: bool = shared.OFFLINE,
) -> None:
    """Choose the layer to read embeddings from: by a profile, by measured scores, or by a few labels."""
    common: dict[str, Any] = {"readouts": parse_list(readouts), "budget": budget, "tolerance": tolerance, "seed": seed}
    if labels is None:
        from layerscope.selection import select

        choice = select(*(runs or []), atlas=atlas, rule=rule, **common)
    else:
        from layerscope.errors import LayerscopeError
        from layerscope.selection.labels import select_with_labels

        if len(runs or []) != 1 or atlas is not None or rule is not None:
            raise LayerscopeError("--labels takes one model or the folder of one run, without --atlas and --rule.")
        choice = select_with_labels(runs[0], labels, **common, offline=offline, progress=output.progress)
    output.show(choice.as_dict(), lambda: _print_choice(choice), then=_then(choice, runs or []))


def _print_choice(choice: Any) -> None:
    from rich.markup import escape

    from layerscope.selection import lines
    from layerscope.terminal import Console, print_facts

    console = Console()
    console.print(escape(choice.headline()), highlight=False, style="bold")
    print_facts(console, lines(choice))


def _then(choice: Any, runs: list[str]) -> str:
    """The export of this choice; of a published model there is nothing to export yet, but a profile can be made."""
    if not runs:
        return "layerscope profile MODEL --data YOUR_TEXTS"
    from layerscope.core.readout import Readout
    from layerscope.exporting.draft import nearest

    then = f"layerscope export {shared.shell_quote(choice.model or 'MODEL')} --layer {choice.layer}"
    if choice.readout:
        readout = nearest(Readout.parse(choice.readout))  # export takes no other, and says why
        then += f" --readout {shared.shell_quote(readout.name)}"
        if readout.centering != "none":
            then += f" --center-on {shared.shell_quote(choice.center_on or 'YOUR_TEXTS')}"
    return then
