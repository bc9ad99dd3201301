"""`layerscope profile`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import (
    DATA,
    METRICS,
    RESULT,
    default_folder,
    option,
    parse_list,
)


class ProfileSettings(shared.CommandOptions):
    """What is measured of what, under the names that `layerscope.profile` has for it."""

    split: str | None = option(
        None, panel=DATA, help="Split of data that have several. (default: the first)"
    )
    column: str | None = option(
        None, panel=DATA, help="Column of the texts, if the file has several."
    )
    limit: int | None = shared.size_option("Use the first N usable texts.")
    max_length: int | None = shared.length_option(None, " (default: 256)")
    metrics: str | None = option(
        None,
        "-m",
        panel=METRICS,
        help="Comma-separated names, `paper` or `all`. (default: all)",
        read=parse_list,
    )
    sites: str | None = option(
        None,
        panel=METRICS,
        help="Where to read states, e.g. embed,block.*.attn. (default: embed,block.*)",
        read=parse_list,
    )
    final_norm: str | None = shared.norm_option(None, " (default: applied)")
    alpha: float | None = option(
        None,
        panel=METRICS,
        help="Order of the entropy, a number >= 0 or inf. (default: 1)",
    )
    rows: str | None = option(
        None,
        panel=METRICS,
        help="How token states are prepared: raw, unit (length 1), centered or centered-unit (default).",
    )
    views: int | None = option(
        None, panel=METRICS, help="Augmented views per text, 2 to 16. (default: 4)"
    )
    map: bool = option(
        False,
        "--map",
        panel=RESULT,
        help="Keep up to 2,000 of the items as points at every layer, for the page.",
    )
    texts: bool = shared.TEXTS
    seed: int = shared.seed_option("Seed of views, permutations and intervals.")
    more: list[str] | None = option(
        None,
        "--option",
        panel=METRICS,
        help="Another setting of `layerscope.profile` as KEY=VALUE, such as entropy=approximate or text_filter=paper; repeatable.",
    )


@command("profile", "layerscope profile smollm2-135m --data lee --limit 50 --out runs/profile")
def profile_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    settings: ProfileSettings,
    model: str = shared.MODEL,
    data: str = shared.data_option(
        "lee",
        f"{shared.DATA_HELP} For a model that reads other items: what its package reads.",
    ),
    task: str | None = option(
        None,
        panel=DATA,
        help="Use the texts of this task instead of --data (a name as for `evaluate --tasks`).",
    ),
    data_dir: Path | None = option(None, panel=DATA, help=f"With --task. {shared.DATA_DIR_HELP}"),
    out: Path | None = shared.out_option(
        "Folder of the run. (default: runs/MODEL--DATA--NORM, --nN with --limit)"
    ),
) -> None:
    """Measure every layer of a model on texts, without labels.

    It takes one pass, and one more per augmented view. Run the same command again to resume.
    """
    from layerscope.errors import LayerscopeError
    from layerscope.profiling import profile

    given = settings.given()
    given |= shared.parse_settings(given.pop("more", None))
    if task is not None and (data != "lee" or {"split", "column", "text_filter"} & set(given)):
        raise LayerscopeError(
            "--task takes the task's own texts: leave out --data, --split, --column and --text-filter."
        )
    norm = settings.final_norm or "applied"
    folder = out or default_folder(model, task or data, norm, limit=settings.limit)
    items: Any = data
    if task is not None:
        from layerscope.evaluation.task_metrics import task_corpus

        limit, seed = given.pop("limit", None), settings.seed
        items = task_corpus(
            task, sample=limit, seed=seed, data_dir=data_dir, offline=running.offline
        )
    run = profile(
        model, items, out=folder, **given, **shared.as_arguments(loading, running, output)
    )
    output.show_run(run, f"layerscope select {shared.shell_quote(folder)}")
