"""Decide from recorded scores, and compare with the scores by all labels.

    python benchmarks/held_out.py

For every recorded model and task (`record_choices.py`), candidates of the templates plain, one-word
and step-by-step are chosen by labels, by the encoder's agreement, and by both, by the rule of
`improve`. Printed are mean scores, the share of the way from the baseline (last layer, mean of
tokens) to the best candidate, and the largest loss against the baseline: of a task's mean over
draws of labels, and of a single draw.

In the rows "fitted elsewhere" the settings are those that gain the most on other tasks of other
models: the lead over the baseline; with labels and an encoder, the weight of the labels and the
lead that labels alone have to show. Errors of leads are those of joint resamples of the items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from common import make_parser

from layerscope.choose.decide import LEAD, lead_by_labels, weight_of_labels
from layerscope.choose.label_scores import WIDTH, smooth_layers
from layerscope.core.scores import Scores, weigh_by_reliability

GRID = ("plain", "one-word", "step-by-step")
COUNTS = (16, 64, 256)
LEADS = [(lead,) for lead in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)]
WEIGHTS = list(product((0.5, 1.0, 2.0), (-9.0, -1.0, -0.5, 0.0, 0.5, 1.0)))
"""Weights of labels in units of `weight_of_labels`, and leads besides `lead_by_labels`."""
DRAWS = 60


@dataclass(frozen=True, eq=False)
class Record:
    """The recorded scores of one model on one task; candidates are readouts × layers."""

    model: str
    task: str
    arrays: dict[str, np.ndarray]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.arrays["layers"])

    @property
    def is_english(self) -> bool:
        """True for a task in English."""
        return "-" not in self.task and self.task != "KorSTS"

    @property
    def allowed(self) -> np.ndarray:
        """A mask of the candidates that may be chosen."""
        templates = [name.rsplit("/", 4)[0] for name in self.arrays["readouts"]]
        in_grid = np.repeat(np.isin(templates, GRID), self.layers)
        return in_grid & np.isfinite(self.arrays["full"]) & np.isfinite(self.arrays["encoder"])

    @property
    def place(self) -> int:
        """The place of the baseline among the candidates: the last layer of the first readout."""
        return self.layers - 1

    @property
    def baseline(self) -> float:
        """The score of the baseline."""
        return float(self.arrays["full"][self.place])

    @property
    def best(self) -> float:
        """The score of the best candidate, which only all labels tell."""
        return float(self.arrays["full"][self.allowed].max())

    @cache  # noqa: B019
    def source(self, name: str, draw: int | None = None) -> Scores:
        """Return what a source says of the candidates that may be chosen.

        The draws have the recorded errors of leads over the baseline, which has none.
        """
        values, errors = self.arrays[name], self.arrays[f"{name}_lead_se"]
        if draw is not None:  # labels are averaged over neighboring layers
            rows = values[draw].astype(np.float64).reshape(-1, self.layers, 1)
            values = smooth_layers(rows, WIDTH * (self.layers - 1) / 30).ravel()
            errors = errors[draw]
        values = np.where(self.allowed, values.astype(np.float64), np.nan)
        noise = np.random.default_rng(0 if draw is None else draw + 1)
        moves = errors.astype(np.float64)[:, None] * noise.standard_normal((len(values), DRAWS))
        return Scores(values, values[:, None] + moves, name)


def read_records(folder: Path) -> Iterator[Record]:
    """Yield every recorded model and task."""
    for file in sorted(folder.glob("*.npz")):
        arrays = dict(np.load(file, allow_pickle=False))
        for task in dict.fromkeys(name.split("/")[0] for name in arrays):
            start = f"{task}/"
            own = {
                name[len(start) :]: rows for name, rows in arrays.items() if name.startswith(start)
            }
            yield Record(file.stem, task, own)


@cache
def compare(
    record: Record, count: int, with_encoder: bool, weight: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the best candidate of each draw of labels, and its leads over the baseline.

    Leads are in standard errors: by all sources, and by labels alone.
    """
    encoder = [record.source("encoder")] if with_encoder else []
    rows = []
    for draw in range(len(record.arrays[f"labels{count}"]) if count else 1):
        labels = []
        if count:
            share = weight * weight_of_labels(count)
            labels = [replace(record.source(f"labels{count}", draw), weight=share)]
        total = weigh_by_reliability([*labels, *encoder])
        best = total.best(record.allowed)
        by_labels = lead_in_errors(labels[0], best, record.place) if labels else np.inf
        rows.append((best, lead_in_errors(total, best, record.place), by_labels))
    best, lead, lead_of_labels = map(np.array, zip(*rows, strict=True))
    return best, lead, lead_of_labels


def lead_in_errors(scores: Scores, candidate: int, baseline: int) -> float:
    """Return the lead of a candidate over the baseline in its standard errors."""
    lead = scores.gain(candidate, baseline).value
    error = scores.error_of_gain(candidate, baseline)
    return lead / error if error else float(np.sign(lead)) * np.inf


def choose(
    record: Record,
    count: int,
    with_encoder: bool,
    lead: float = LEAD,
    weight: float = 1.0,
    extra_lead: float = 0.0,
) -> np.ndarray:
    """Return the scores by all labels of what is chosen, one for each draw of labels.

    The baseline stays where the lead over it is at most `lead` standard errors, or where labels
    beside an encoder disagree.
    """
    best, lead_by_all, lead_of_labels = compare(record, count, with_encoder, weight)
    is_enough = lead_by_all > lead
    if count and with_encoder:
        is_enough &= lead_of_labels > lead_by_labels(count) + extra_lead
    return record.arrays["full"][np.where(is_enough, best, record.place)]


Chooser = Callable[[Record], np.ndarray]


def row(name: str, records: Sequence[Record], chooser: Chooser) -> str:
    """Return a row of the table: mean, share and losses."""
    scores = [chooser(record) for record in records]
    before = np.array([record.baseline for record in records])
    best = np.array([record.best for record in records])
    after = np.array([draws.mean() for draws in scores])
    worst = min(float((draws - base).min()) for draws, base in zip(scores, before, strict=True))
    share = (after.mean() - before.mean()) / (best.mean() - before.mean())
    return (
        f"| {name} | {before.mean():.1f} | {after.mean():.1f} | {best.mean():.1f} | {share:.0%} |"
        f" {(after - before).min():+.1f} | {worst:+.1f} |"
    )


def fit_elsewhere(
    records: Sequence[Record],
    settings: Sequence[tuple[float, ...]],
    decide: Callable[..., np.ndarray],
) -> Chooser:
    """Return a chooser whose settings gain the most on other tasks of other models."""
    chosen = {
        setting: {(record.model, record.task): decide(record, *setting) for record in records}
        for setting in settings
    }
    baselines = {(record.model, record.task): record.baseline for record in records}

    def chooser(record: Record) -> np.ndarray:
        others = [key for key in baselines if key[0] != record.model and key[1] != record.task]

        def gain(setting: tuple[float, ...]) -> float:
            return sum(chosen[setting][key].mean() - baselines[key] for key in others)

        return chosen[max(settings, key=gain)][record.model, record.task]

    return chooser


def main() -> None:
    """Print a table for all tasks, and one for each model and kind of language."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "results" / "choices")
    args = parser.parse_args()
    everything = list(read_records(args.data))
    rows: dict[str, Chooser] = {
        "encoder": lambda record: choose(record, 0, True),
        "encoder, fitted elsewhere": fit_elsewhere(
            everything, LEADS, lambda record, lead: choose(record, 0, True, lead)
        ),
    }
    for count in COUNTS:
        rows[f"{count} labels"] = lambda record, count=count: choose(record, count, False)
        rows[f"{count} labels, encoder"] = lambda record, count=count: choose(record, count, True)
        rows[f"{count} labels, encoder, fitted elsewhere"] = fit_elsewhere(
            everything,
            WEIGHTS,
            lambda record, weight, extra, count=count: choose(
                record, count, True, LEAD, weight, extra
            ),
        )
    groups = {"all": everything}
    for model in dict.fromkeys(record.model for record in everything):
        for language in ("English", "other languages"):
            groups[f"{model}, {language}"] = [
                record
                for record in everything
                if record.model == model and record.is_english == (language == "English")
            ]
    for name, records in groups.items():
        print(f"\n{name}: {len(records)} tasks\n")
        print("| chosen by | baseline | chosen | best | share | worst task | worst draw |")
        print("|---|---|---|---|---|---|---|")
        for label, chooser in rows.items():
            print(row(label, records, chooser))


if __name__ == "__main__":
    main()
