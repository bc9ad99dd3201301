"""Where numbers go besides our own files: TensorBoard, Weights & Biases, MLflow, Trackio, or an
object with `write` and `close`.

`profile`, `improve` and `LayerWatch` open what `log=` names. Numbers travel, and facts in words;
texts never do. Each program is used as it is set up on the machine (`WANDB_MODE`,
`MLFLOW_TRACKING_URI`, …). An entry point of the group `layerscope.loggers` adds a `LogKind`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

from layerscope.core.plugins import Registry
from layerscope.errors import (
    InvalidValueError,
    LayerscopeError,
    UnknownNameError,
    one_line,
    require,
)

PROJECT = "layerscope"
_log = logging.getLogger("layerscope")
Row = Mapping[str, Any]


class Logger(Protocol):
    """Takes rows as they are measured. A row has a `value`, a `step` (of a training, or the layer)
    and a `tag`, its curve's name; those of a watch have site, layer, depth, metric, sink and n
    instead of a tag.

    One with a method `tell` also hears what is no number, as a mapping."""

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep some rows."""

    def close(self) -> None:
        """No more will come."""


def tag(row: Row) -> str:
    """The name of a row's curve in a dashboard.

    >>> tag({"metric": "prompt_entropy", "sink": "drop", "layer": 3})
    'layers/prompt_entropy_sink_dropped/03'
    """
    if "tag" in row:
        return str(row["tag"])
    sink = "_sink_dropped" if row["sink"] == "drop" else ""
    return f"layers/{row['metric']}{sink}/{row['layer']:02d}"


def by_step(rows: Sequence[Row]) -> Iterator[tuple[int, dict[str, float]]]:
    """The finite values of rows by tag, a step at a time.

    >>> list(by_step([{"tag": "a", "step": 1, "value": 2.0}, {"tag": "b", "step": 1, "value": float("nan")}]))
    [(1, {'a': 2.0})]
    """
    steps: dict[int, dict[str, float]] = {}
    for row in rows:
        if math.isfinite(row["value"]):
            steps.setdefault(int(row["step"]), {})[tag(row)] = float(row["value"])
    yield from sorted(steps.items())


class TensorBoardLog:
    """Event files in a folder."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))
        self.tell(facts)

    def write(self, rows: Sequence[Row]) -> None:
        for step, values in by_step(rows):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def tell(self, facts: Mapping[str, Any]) -> None:
        self._writer.add_text("layerscope", f"```\n{json.dumps(facts, indent=1, default=str)}\n```")

    def close(self) -> None:
        self._writer.close()


class WandbLog:
    """Logs into the current run; opens one, and closes it again, where there is none."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        wandb: Any = import_module("wandb")
        self._own, self._axes = wandb.run is None, set[str]()
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = (
            wandb.init(project=project, config={"layerscope": facts}) if self._own else wandb.run
        )

    def write(self, rows: Sequence[Row]) -> None:
        for step, values in by_step(rows):
            groups = {name.partition("/")[0] for name in values}
            for group in sorted(
                groups - self._axes
            ):  # a step axis of our own: a training loop may be ahead on W&B's
                self._run.define_metric(f"{group}/step")
                self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
            self._axes |= groups
            self._run.log({**{f"{group}/step": step for group in groups}, **values})

    def tell(self, facts: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(facts))

    def close(self) -> None:
        if self._own:
            self._run.finish()


class MlflowLog:
    """Logs into the active run; starts one, and ends it again, where there is none."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self._mlflow: Any = import_module("mlflow")
        self._own = self._mlflow.active_run() is None
        if self._own:
            self._mlflow.start_run(run_name=PROJECT)
        self.tell(facts)

    def write(self, rows: Sequence[Row]) -> None:
        for step, values in by_step(rows):
            named = {
                re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII): value
                for name, value in values.items()
            }
            self._mlflow.log_metrics(named, step=step)

    def tell(self, facts: Mapping[str, Any]) -> None:
        self._mlflow.set_tags(
            {f"layerscope.{name}": str(value)[:5000] for name, value in facts.items()}
        )

    def close(self) -> None:
        if self._own:
            self._mlflow.end_run()


class TrackioLog:
    """A run of its own, kept on this machine unless trackio is told otherwise."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self._facts, self._written = dict(facts), False
        self._run = self._open()

    def _open(self, **which: Any) -> Any:
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        return import_module("trackio").init(
            project=project, config=dict(self._facts), embed=False, **which
        )

    def write(self, rows: Sequence[Row]) -> None:
        for step, values in by_step(rows):
            self._run.log(values, step=step)
            self._written = True

    def tell(self, facts: Mapping[str, Any]) -> None:
        self._facts |= facts
        self._run.config.update(facts)
        if self._written:  # facts travel with the first numbers alone: the run is opened again for those that come next
            self._run.finish()
            self._run = self._open(name=self._run.name, resume="allow")

    def close(self) -> None:
        self._run.finish()


@dataclass(frozen=True)
class LogKind:
    """A program that keeps numbers: its name in `log=`, what it is called, how it is opened (with
    the folder for its files, where it writes any, and facts), and the package that it needs with
    the extra that installs it."""

    name: str
    title: str
    open: Callable[[Path, Mapping[str, Any]], Logger]
    package: str | None = None
    extra: str = ""


LOGGERS: Registry[LogKind] = Registry(
    "log",
    "layerscope.loggers",
    name=lambda kind: kind.name,
    check=lambda thing: isinstance(thing, LogKind),
)
for _kind in (
    LogKind("tensorboard", "TensorBoard", TensorBoardLog, "torch.utils.tensorboard", "training"),
    LogKind("wandb", "Weights & Biases", WandbLog, "wandb", "training"),
    LogKind("mlflow", "MLflow", MlflowLog, "mlflow", "mlflow"),
    LogKind("trackio", "Trackio", TrackioLog, "trackio", "trackio"),
):
    LOGGERS.add(_kind)

Log = str | Logger | Sequence[str | Logger] | None
"""What `log=` takes: a name, an object, or several."""


def check_log(wanted: Log, also: Mapping[str, LogKind] | None = None) -> list[Any]:
    """The kinds and objects that are asked for; an unknown name, or a package that is not there, is
    an error."""
    alone = isinstance(wanted, str) or hasattr(wanted, "write")
    each: list[Any] = [wanted] if alone else list(wanted or ())  # type: ignore[arg-type]
    known = {**LOGGERS.all(), **(also or {})}
    for one in each:
        if isinstance(one, str) and one not in known:
            raise (
                LayerscopeError(LOGGERS.broken[one])
                if one in LOGGERS.broken
                else UnknownNameError("log", one, known)
            )
        if not (isinstance(one, str) or (hasattr(one, "write") and hasattr(one, "close"))):
            raise InvalidValueError(
                f"log= takes {', '.join(known)}, or objects with write(rows) and close(), not {one!r}."
            )
    kinds = [known[one] if isinstance(one, str) else one for one in each]
    for kind in kinds:
        if isinstance(kind, LogKind) and kind.package is not None:
            require(f"logging to {kind.title} ({kind.name})", kind.extra, kind.package)
    return kinds


class Logs:
    """The loggers asked for, together; `folder` is where one that writes files puts them.

    They are opened before anything is computed, so that what is not set up is told at once.
    Afterwards a program that fails costs a warning and not the result. `also` are kinds that only
    this command offers.
    """

    def __init__(
        self,
        wanted: Log,
        folder: Path,
        facts: Mapping[str, Any],
        also: Mapping[str, LogKind] | None = None,
    ) -> None:
        self.loggers: list[Any] = []
        for kind in check_log(wanted, also):
            try:
                with redirect_stdout(sys.stderr):  # a command's own output may be read by a program
                    self.loggers.append(
                        kind.open(folder, facts) if isinstance(kind, LogKind) else kind
                    )
            except Exception as error:  # whatever a program says of its own settings
                self.close()
                if isinstance(error, LayerscopeError):
                    raise
                raise LayerscopeError(
                    f"{kind.title} could not be opened: {one_line(str(error))[:300]}"
                ) from error

    def write(self, rows: Any) -> None:
        """Rows for all."""
        self._each("write", rows)

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Facts that are not numbers, for loggers that accept them."""
        self._each("tell", facts)

    def close(self) -> None:
        """No more will come."""
        self._each("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _each(self, method: str, *given: Any) -> None:
        for logger in self.loggers:
            try:
                with redirect_stdout(sys.stderr):
                    getattr(logger, method, lambda *_: None)(*given)
            except LayerscopeError:  # of a log of our own, such as a full disk
                raise
            except Exception as error:
                _log.warning(
                    "%s: not logged (%s: %s)",
                    type(logger).__name__,
                    type(error).__name__,
                    one_line(str(error))[:200],
                )


def logs_folder(out: str | Path | None) -> Path:
    """The folder of event files of a run: beside its own, which holds nothing but the run.

    >>> logs_folder("runs/one").name
    'one-logs'
    """
    place = Path(os.path.abspath(out or PROJECT))  # `.` and `..` have no name of their own
    return place.parent / f"{place.name}-logs"
