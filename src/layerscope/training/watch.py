"""`LayerWatch`: every layer of a model in training, measured on held-out texts within a share of
the run's time."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import nn

from layerscope.capture import FINAL_NORMS, expand_sites
from layerscope.capture.reduce import reducer_on
from layerscope.core.conventions import Reading
from layerscope.errors import (
    InvalidValueError,
    ModelError,
    NonFiniteStatesError,
    RunFolderError,
    UnknownNameError,
)
from layerscope.loggers import OnRows, send
from layerscope.metrics import Options
from layerscope.metrics.registry import MetricName
from layerscope.models import LoadedModel
from layerscope.models.families import family_for
from layerscope.models.modules import inner_tokenizer, unwrap
from layerscope.models.pretrained import check_input
from layerscope.store import atomic
from layerscope.training.measuring import (
    COLUMNS,
    choose_metrics,
    evaluation_mode,
    fingerprint,
    measure_layers,
    read_held_out,
    without_wrappers,
)
from layerscope.version import VERSION

_REMEMBERED = 3  # measurements whose cost is expected again; the dearest of them counts
_STEPS = 32  # training steps whose median is known


class Pace:
    """Two clocks, the training's and our own, and the rule that ours may have `share` of their sum.

    A measurement is due when its expected cost still fits. Before the first one nothing is known: a
    small trial, assumed to cost no more than a training step, says what to expect.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 < share < 1:
            raise InvalidValueError(
                f"share is a share of the run's time between 0 and 1, not {share}."
            )
        self.share, self.clock = share, clock
        self.training = self.own = 0.0
        self._left: float | None = None  # when training got the machine back
        self._arrived: float | None = None  # when it handed over, while we have it
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._expected: float | None = None
        self._measured_at: float | None = None  # of training's time

    @property
    def spent(self) -> float:
        """Our share of the time so far."""
        whole = self.training + self.own
        return self.own / whole if whole > 0 else 0.0

    @property
    def expected(self) -> float | None:
        """What the next measurement is expected to cost, in seconds; None before the trial."""
        return max(self._costs) if self._costs else self._expected

    @property
    def tried(self) -> bool:
        """Whether the cost of a measurement is known at least roughly."""
        return self.expected is not None

    def arrive(self) -> None:
        """Training hands over: what passed since it got the machine is its own time."""
        now = self.clock()
        if self._left is not None:
            self.training += now - self._left
            self._steps.append(now - self._left)
        self._arrived = now

    def leave(self) -> None:
        """Training gets the machine back: what passed since it handed over is ours."""
        now = self.clock()
        if self._arrived is not None:
            self.own += now - self._arrived
        self._left, self._arrived = now, None

    def fits(self, cost: float) -> bool:
        """Whether a cost still fits into the share."""
        here = (
            0.0 if self._arrived is None else self.clock() - self._arrived
        )  # a trial just now, say
        own = self.own + here + cost
        return own <= self.share * (self.training + own)

    def trial_due(self) -> bool:
        """Whether the small trial fits, if it costs no more than a training step."""
        return not self.tried and bool(self._steps) and self.fits(statistics.median(self._steps))

    def due(self) -> bool:
        """Whether a measurement fits."""
        if self.expected is None or not self.fits(self.expected):
            return False
        # what was saved up is spent over some time, and not on one moment
        return (
            self._measured_at is None
            or self.training - self._measured_at >= 0.5 * self.expected / self.share
        )

    def expect(self, seconds: float) -> None:
        """What the trial says of a whole measurement."""
        self._expected = seconds

    def cost(self, seconds: float) -> None:
        """What a measurement took."""
        self._costs.append(seconds)
        self._measured_at = self.training


class LayerWatch:
    """Measure the layers of a model while it trains. Call `step` after every training step; it
    measures when there is time.

    `texts` are held-out texts (with a `tokenizer`), or a batch with `input_ids`. `share` is the
    largest share of the run's time that measuring may take. `out` is a CSV file that rows are
    appended to, or None. `on_rows` is a function such as `wandb.log`: it is called with a
    dictionary of the step and a number for each metric and layer. `metrics` names what is measured (of tokens or pooled vectors; None: a
    few common ones and those of other packages). `at_start` measures at the first call, and makes
    up for the time later. The model, its gradients and its random numbers are untouched.

        watch = LayerWatch(model, held_out, tokenizer, share=0.02, out="layers.csv")
        for step, batch in enumerate(batches):
            ...
            watch.step(step)
        watch.close()
    """

    def __init__(
        self,
        model: nn.Module,
        texts: Any,
        tokenizer: Any = None,
        *,
        share: float = 0.02,
        out: str | Path | None = "layers.csv",
        on_rows: OnRows | None = None,
        max_length: int = 128,
        final_norm: str = "raw",
        sites: Sequence[str] | None = None,
        metrics: MetricName | Sequence[MetricName] | None = None,
        alpha: float = 1.0,
        at_start: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if final_norm not in FINAL_NORMS:
            raise UnknownNameError("final_norm", final_norm, FINAL_NORMS)
        self.pace = Pace(share, clock)
        self.pace.arrive()
        inner = unwrap(without_wrappers(model))
        family = family_for(inner)
        if family.kind != "texts":
            raise ModelError(
                f"a watch reads texts, and {type(inner).__name__} reads {family.kind}."
            )
        check_input(inner, family.kind)
        anatomy = family.resolve(inner)
        name = getattr(getattr(inner, "config", None), "name_or_path", "") or type(inner).__name__
        self.model = LoadedModel(inner, inner_tokenizer(model, tokenizer), anatomy, str(name))
        self.options = Options(alpha=alpha)
        self.prompts = read_held_out(self.model, texts, max_length)
        self.metrics = choose_metrics(metrics, self.options)
        chosen = expand_sites(sites, anatomy)
        self.reducer = reducer_on(self.model.device).of(
            anatomy, chosen, final_norm, self.options, self.metrics
        )
        self.conventions = {
            "layerscope": VERSION,
            "torch": torch.__version__,
            "model": self.model.name,
            "family": anatomy.family,
            "blocks": anatomy.n_blocks,
            "held_out": {
                "texts": len(self.prompts),
                "longest": max(map(len, self.prompts)),
                "sha256": fingerprint(self.prompts),
            },
            **Reading(final_norm, max_length, anatomy.final_norm_name).as_conventions(),
            "rows": self.options.rows,
            "pooled_rows": self.options.pooled_rows,
            "alpha": alpha,
            "metrics": [metric.info.name for metric in self.metrics],
            "share": share,
        }
        self.file = None if out is None else CsvLog(Path(out), self.conventions)
        self.on_rows = on_rows
        self._rows: list[dict[str, Any]] = []
        self._at_start, self._open, self._skipped = at_start, True, 0
        self.pace.leave()

    def step(self, step: int) -> bool:
        """Tell that a training step is done; True if the layers were measured."""
        with self._our_time():
            if self._at_start:
                self._at_start = False
                return self._measure(step)
            if self.pace.trial_due():
                self._try()
            return self._measure(step) if self.pace.due() else False

    def measure(self, step: int) -> pd.DataFrame:
        """Measure now, whatever it costs; the time counts, so that the next measurements wait for
        it."""
        with self._our_time():
            self._measure(step)
        return self.table[self.table["step"] == step]

    @property
    def table(self) -> pd.DataFrame:
        """All that was measured, tidy: a row per step, layer, metric and sink setting."""
        return pd.DataFrame(self._rows, columns=COLUMNS)

    @property
    def spent(self) -> float:
        """The share of the time so far that went into measuring."""
        return self.pace.spent

    def close(self) -> None:
        """End the watch, with a warning if the run was too short for a single measurement."""
        if not self._open:
            return
        self._open = False
        if not self._rows:
            cost = self.pace.expected
            guess = (
                ""
                if cost is None
                else f" One costs about {cost:.2g} s on these {len(self.prompts)} texts."
            )
            warnings.warn(
                f"layers were never measured: {self.pace.training:.3g} s of training leave too little time at a share of "
                f"{self.pace.share:g}.{guess} Give fewer or shorter texts, a larger share, or at_start=True.",
                stacklevel=2,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _our_time(self) -> Iterator[None]:
        """What happens inside is measuring; what a GPU still does for training before is not."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        self.pace.arrive()
        try:
            yield
        finally:
            self.pace.leave()

    def _try(self) -> None:
        """The shortest text alone: cheap, and it says what all of them will cost (at most: batches
        are faster)."""
        started = self.pace.clock()
        shortest = min(self.prompts, key=len)
        self._run([shortest], -1)
        scale = sum(len(ids) for ids in self.prompts) / len(shortest)
        self.pace.expect((self.pace.clock() - started) * scale)

    def _measure(self, step: int) -> bool:
        started = self.pace.clock()
        rows = self._run(self.prompts, step)
        if self.file is not None:
            self.file.write(rows)
        send(self.on_rows, step, {_name(row): row["value"] for row in rows})
        self._rows += rows
        self.pace.cost(self.pace.clock() - started)
        return bool(rows)

    def _run(self, prompts: Sequence[np.ndarray], step: int) -> list[dict[str, Any]]:
        with evaluation_mode(self.model.module):
            try:
                return measure_layers(
                    self.model, self.reducer, prompts, self.options, step, self.metrics
                )
            except (
                NonFiniteStatesError
            ) as error:  # the training has gone wrong; that is for its owner to decide about
                if not self._skipped:
                    warnings.warn(f"step {step}: layers not measured. {error}", stacklevel=4)
                self._skipped += 1
                return []


class CsvLog:
    """Appends to a file, which is whole after every step; a run that goes on appends to what is
    there."""

    def __init__(self, path: Path, conventions: Mapping[str, Any]) -> None:
        self.path = path
        with atomic.explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a+", encoding="utf-8") as stream:
                stream.seek(0)
                first = stream.readline()
                if not first:
                    stream.write(f"{','.join(COLUMNS)}\n")
        header = first.rstrip("\r\n")
        if first and header != ",".join(COLUMNS):
            raise RunFolderError(
                f"{path} holds something else (its first line is {header!r}). Choose another file."
            )
        atomic.write_json(path.with_suffix(".json"), dict(conventions))

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        with atomic.explained(self.path):
            pd.DataFrame(rows, columns=COLUMNS).to_csv(
                self.path, mode="a", header=False, index=False
            )


def _name(row: Mapping[str, Any]) -> str:
    """The name of a row's curve in a dashboard."""
    sink = "_sink_dropped" if row["sink"] == "drop" else ""
    return f"layers/{row['metric']}{sink}/{row['layer']:02d}"
