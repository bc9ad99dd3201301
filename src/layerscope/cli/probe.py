"""`layerscope probe`: how well classes can be read from every layer's states."""

from __future__ import annotations

from pathlib import Path

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import (
    DATA,
    ENGINES,
    METRICS,
    default_folder,
    option,
    parse_list,
    parse_number,
)
from layerscope.core.options import parse_size


class ProbeSettings(shared.CommandOptions):
    """What is trained on what, under the names that `layerscope.probe` has for it."""

    test: str | None = option(
        None,
        panel=DATA,
        help="Test data. (default: the data's own test split, or a fifth of the data)",
    )
    sample: int | None = shared.size_option(
        "Use at most N training and N test items, stratified by class."
    )
    max_length: int = shared.length_option(128)
    data_dir: Path | None = option(None, panel=DATA, help=shared.DATA_DIR_HELP)
    heads: str = option(
        "attention",
        "-p",
        panel=METRICS,
        help="Kinds of probe, comma-separated: attention, linear, mean, knn.",
        read=parse_list,
    )
    layers: str | None = shared.layers_option(METRICS, "probe")
    final_norm: str = shared.norm_option("applied")
    learning_rates: str | None = option(
        None,
        panel=METRICS,
        help="Learning rates to try. (default: 0.002,0.01,0.05)",
        read=lambda text: (
            [parse_number(part, "learning-rates") for part in parse_list(text) or []] or None
        ),
    )
    seed: int = shared.seed_option(
        "Seed of the split, the initial weights and the order of the items."
    )
    more: list[str] | None = option(
        None,
        "--option",
        panel=METRICS,
        help="Another setting of `layerscope.probe` as KEY=VALUE, such as epochs=30; repeatable.",
    )
    store_size: str | None = option(
        None,
        panel=ENGINES,
        help="Maximum memory for states. (default: 4GB; 60 % of a GPU)",
        read=lambda text: None if text is None else parse_size(text),
    )


@command(
    "probe",
    "layerscope probe smollm2-135m --data TrecQuestions --heads mean --sample 200 --out runs/probe",
)
def probe_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    settings: ProbeSettings,
    model: str = shared.MODEL,
    data: str | None = shared.data_option(
        None,
        "Labeled texts: a .csv, .tsv or .jsonl file with `text` and `label` (and `split`), or a classification task "
        "such as TrecQuestions or one of mteb's. For an image model: digits, fashion-mnist, a folder of class folders, a "
        ".parquet file or a hub dataset.",
    ),
    out: Path | None = shared.out_option("Folder of the run. (default: runs/MODEL--DATA--probe)"),
) -> None:
    """Train probes (small classifiers) on the frozen states of all layers at once.

    Run the same command again to resume.
    """
    from layerscope.probing import probe as run_probes

    folder = out or default_folder(model, data or "data", "probe", limit=settings.sample)
    given = settings.given()
    given |= shared.parse_settings(given.pop("more", None))
    run = run_probes(
        model, data, out=folder, **given, **shared.as_arguments(loading, running, output)
    )
    output.show_run(run, f"layerscope report {shared.shell_quote(folder)}")
