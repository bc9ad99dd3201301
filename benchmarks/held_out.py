"""Decide from recorded scores, and compare with the scores by all labels.

    python benchmarks/held_out.py

For every recorded model and task (`record_choices.py`), candidates of the templates plain, one-word
and step-by-step are chosen by labels, by the encoder's agreement, and by both, as `improve` adds
them. Printed are mean scores, the share of the way from the baseline (last layer, mean of tokens) to
the best candidate, and the largest loss against the baseline: of a task's mean over draws, and of a
single draw. Two settings are also fitted anew for each task, on all other tasks and both models: the
lead that a candidate needs over the baseline (without labels the only setting of the decision), and
the weight of labels beside the encoder. Resamples are drawn from the recorded standard errors, each
candidate's by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from common import make_parser

from layerscope.choose.label_scores import WIDTH, smooth_layers
from layerscope.core.scores import Scores, weigh_by_reliability

GRID = ("plain", "one-word", "step-by-step")
SHARES = (0.5, 1.0, 2.0, 4.0)
LEADS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
LABELS_SHARE = 2.0
DRAWS = 32
LEAD = 1.0
"""`layerscope.choose.decide.LEAD` is 1.5: there resamples are the same for all candidates, so that
errors of differences are smaller than here."""


@dataclass(frozen=True)
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
    def allowed(self) -> np.ndarray:
        """A mask of the candidates that may be chosen."""
        templates = [name.rsplit("/", 4)[0] for name in self.arrays["readouts"]]
        in_grid = np.repeat(np.isin(templates, GRID), self.layers)
        return in_grid & np.isfinite(self.arrays["full"]) & np.isfinite(self.arrays["encoder"])

    @property
    def baseline(self) -> float:
        """The score of the last layer under the default readout."""
        return float(self.arrays["full"][self.layers - 1])

    @property
    def best(self) -> float:
        """The score of the best candidate, which only all labels tell."""
        return float(self.arrays["full"][self.allowed].max())

    def source(self, name: str, draw: int | None = None) -> Scores:
        """Return what a source says of the candidates that may be chosen."""
        values, errors = self.arrays[name], self.arrays[f"{name}_se"]
        if draw is not None:
            values, errors = values[draw], errors[draw]
        values = np.where(self.allowed, values.astype(np.float64), np.nan)
        noise = np.random.default_rng(0).standard_normal((len(values), DRAWS))
        draws = values[:, None] + errors.astype(np.float64)[:, None] * noise
        if draw is not None:  # labels are averaged over neighboring layers
            rows = np.column_stack([values, draws]).reshape(-1, self.layers, DRAWS + 1)
            width = WIDTH * (self.layers - 1) / 30
            smoothed = smooth_layers(rows, width).reshape(len(values), -1)
            values, draws = smoothed[:, 0], smoothed[:, 1:]
        return Scores(values, draws, name)


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


def choose(
    record: Record, count: int, share: float, with_encoder: bool, lead: float = LEAD
) -> np.ndarray:
    """Return the scores by all labels of what is chosen, one for each draw of labels.

    The baseline stays where the lead over it is at most `lead` standard errors.
    """
    encoder = [record.source("encoder")] if with_encoder else []
    draws = len(record.arrays[f"labels{count}"]) if count else 1
    chosen = []
    for draw in range(draws):
        labels = [replace(record.source(f"labels{count}", draw), weight=share)] if count else []
        total = weigh_by_reliability([*labels, *encoder])
        best, baseline = total.best(record.allowed), record.layers - 1
        is_enough = total.gain(best, baseline).value > lead * total.error_of_gain(best, baseline)
        chosen.append(best if is_enough else baseline)
    return record.arrays["full"][chosen]


Chooser = Callable[[Record], np.ndarray]


def row(name: str, records: list[Record], chooser: Chooser) -> str:
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


def fitted(
    records: list[Record],
    settings: tuple[float, ...],
    decide: Callable[[Record, float], np.ndarray],
) -> Chooser:
    """Return a chooser whose setting gains the most on all other tasks, of all models."""
    gains = {
        setting: {
            (record.model, record.task): decide(record, setting).mean() - record.baseline
            for record in records
        }
        for setting in settings
    }

    def chooser(record: Record) -> np.ndarray:
        def gain(setting: float) -> float:
            return sum(gain for (_, task), gain in gains[setting].items() if task != record.task)

        return decide(record, max(settings, key=gain))

    return chooser


def main() -> None:
    """Print a table for all tasks, and one for each model and kind of language."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "results" / "choices")
    args = parser.parse_args()
    everything = list(read_records(args.data))
    groups = {"all": everything}
    for model in dict.fromkeys(record.model for record in everything):
        for language in ("English", "other languages"):
            groups[f"{model}, {language}"] = [
                record
                for record in everything
                if record.model == model
                and (language == "English") == ("-" not in record.task and record.task != "KorSTS")
            ]
    by_encoder = fitted(
        everything, LEADS, lambda record, lead: choose(record, 0, 0, True, lead=lead)
    )
    for name, records in groups.items():
        print(f"\n{name}: {len(records)} tasks\n")
        print("| chosen by | baseline | chosen | best | share | worst task | worst draw |")
        print("|---|---|---|---|---|---|---|")
        print(row("encoder", records, lambda record: choose(record, 0, 0, True)))
        print(row("encoder, lead fitted on other tasks", records, by_encoder))
        for count in (16, 64, 256):
            alone = lambda record, count=count: choose(record, count, 1, False)  # noqa: E731
            both = lambda record, count=count: choose(record, count, LABELS_SHARE, True)  # noqa: E731
            print(row(f"{count} labels", records, alone))
            print(row(f"{count} labels, encoder", records, both))
            fit = fitted(
                everything,
                SHARES,
                lambda record, share, count=count: choose(record, count, share, True),
            )
            print(row(f"{count} labels, encoder, weight fitted on other tasks", records, fit))


if __name__ == "__main__":
    main()
