"""`improve --train`: the blocks below a head are trained too, with the head's own teacher, and
compared with the head alone.

The texts are split once. Most are learned from; some say when to stop; on the rest the student is
compared with the head that it began with, which was fitted on the same texts. A student that is no
better is not handed over.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.heads import Head, Ridge
from layerscope.core.identity import model_key
from layerscope.core.readout import HEAD, Readout
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.exporting.job import prepare
from layerscope.improving.lesson import START, agreement, learn
from layerscope.loggers import OnRows, send
from layerscope.models import LoadedModel, wrap
from layerscope.models.settings import quiet
from layerscope.progress import Progress
from layerscope.store import atomic

MINUTES = 30.0
"""How long a student is trained at most, unless another time is given."""

BUDGET = 0.5
"""The share of today's computation that a student takes, unless another budget is given: half of
the blocks."""

CHECKED = 500
"""Texts that the student is compared on, at most; at most an eighth of all. As many say when to
stop."""


@dataclass(frozen=True)
class Trained:
    """A student: the blocks as trained, its head, and what is known of both."""

    model: LoadedModel
    head: Head
    facts: dict[str, Any]

    @property
    def better(self) -> bool:
        """Whether it clearly agrees more with the teacher than the head that it began with, and
        than what the user has today."""
        return bool(self.facts["interval"][0] > 0 and self.facts.get("over_today", [1.0])[0] > 0)

    @property
    def outcome(self) -> str:
        """What came of it."""
        low, high = self.facts["interval"]
        steps = f"{self.facts['steps']:,} step{'' if self.facts['steps'] == 1 else 's'}"
        return (
            f"{self.facts['blocks']} blocks, {steps} on {self.facts['texts']:,} texts: agreement with the "
            f"teacher {self.facts['head']:.3f} with the head alone → {self.facts['student']:.3f} (gain {low:+.3f} to "
            f"{high:+.3f}, 95 %; {self.facts['checked']} texts that nothing was fitted on)"
        )


def train_student(
    model: LoadedModel,
    layer: int,
    texts: Sequence[str],
    plain: np.ndarray,
    target: np.ndarray,
    *,
    max_length: int = 256,
    seed: int = 0,
    minutes: float | None = MINUTES,
    settings: Mapping[str, Any] | None = None,
    work: Path | None = None,
    today: Callable[[Sequence[str]], np.ndarray] | None = None,
    on_rows: OnRows | None = None,
    bar: Progress,
) -> Trained:
    """Train the blocks below `layer` so that similarities of texts agree with those of the target
    (texts, K).

    `plain` (texts, D) are the layer's plain vectors, from which the head that the student begins
    with is fitted. `settings` are arguments of sentence-transformers' trainer that differ from
    ours. Where `work` names a folder, a training that was stopped goes on from what is there.
    `today` encodes texts as the user has it now, to compare with. `on_rows` gets the loss.
    """
    order = np.random.default_rng([seed, 7]).permutation(len(texts))
    aside = min(CHECKED, len(texts) // 8)
    checked, watched, learned = np.split(order, [aside, 2 * aside])
    head = Ridge(plain[learned], target[learned]).head()
    key = _key(model, layer, max_length, texts, target, seed, minutes, settings)
    with _folder(work, key) as folder:
        shutil.rmtree(folder / START, ignore_errors=True)
        prepare(
            model,
            layer,
            Readout(centering=HEAD),
            folder / START,
            brief=True,
            max_length=max_length,
            unit=True,
            center=lambda _: head,
        )
        both = np.concatenate([learned, watched])
        student, state = learn(
            folder,
            [texts[i] for i in both],
            target[both],
            aside,
            seed=seed,
            device=model.device,
            settings=settings or {},
            minutes=minutes,
            on_step=_shown_steps(bar),
            on_log=partial(_send_log, on_rows),
        )
        compared, scores = [texts[i] for i in checked], []
        with quiet():
            started = load_folder(folder / START)
        for encoder in (started, student):  # in the precision in which it is handed over
            encoder.to(device=model.device, dtype=next(model.module.parameters()).dtype).eval()
            vectors = encoder.encode(compared, show_progress_bar=False)
            scores.append(agreement(vectors, target[checked]))
        looks = [entry for entry in state.log_history if "eval_agreement" in entry]
        facts = {
            "head": float(scores[0].mean()), "student": float(scores[1].mean()), "checked": len(checked),
            "interval": _interval(scores[1] - scores[0]), "texts": len(learned), "blocks": layer,
            "steps": state.best_global_step or state.global_step, "seed": seed,
            "curve": [[entry["step"], entry["eval_agreement"]] for entry in looks],
        }  # fmt: skip
        if today is not None:
            scores.append(agreement(today(compared), target[checked]))
            facts |= {
                "today": float(scores[2].mean()),
                "over_today": _interval(scores[1] - scores[2]),
            }
        return Trained(_as_loaded(student, model, facts), _head_of(student, head.fitted_on), facts)


def _interval(gains: np.ndarray) -> list[float]:
    """The 95 % interval of a mean gain over texts."""
    error = 1.96 * float(gains.std(ddof=1)) / len(gains) ** 0.5
    return [float(gains.mean()) - error, float(gains.mean()) + error]


def _shown_steps(bar: Progress) -> Callable[[int, int], None]:
    """Return what shows the steps of a training, from the first that is done."""
    begun = False

    def on_step(done: int, most: int) -> None:
        nonlocal begun
        if not begun:
            bar.begin("training|steps", most, done - 1)
            begun = True
        bar.advance(1)

    return on_step


def _send_log(on_rows: OnRows | None, told: Mapping[str, Any]) -> None:
    """Send the numbers that a trainer logs at a step."""
    values = {
        f"train/{name}": value
        for name, value in told.items()
        if name != "step" and isinstance(value, int | float)
    }
    send(on_rows, told["step"], values)


def _key(
    model: LoadedModel,
    layer: int,
    max_length: int,
    texts: Sequence[str],
    target: np.ndarray,
    seed: int,
    minutes: float | None,
    settings: Any,
) -> str:
    """What tells this training from another."""
    about = [
        model_key(model.identity),
        layer,
        max_length,
        seed,
        minutes,
        settings,
        np.round(target[:50], 3).tolist(),
    ]
    said = json.dumps([about, list(texts)], default=str, sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


@contextmanager
def _folder(work: Path | None, key: str) -> Iterator[Path]:
    """The lesson's folder: in `work`, kept if the training is stopped; or a temporary one."""
    if work is None:
        with tempfile.TemporaryDirectory(prefix="layerscope-") as temporary:
            yield Path(temporary)
        return
    place = work / f"lesson-{key}"
    for other in work.glob("lesson-*"):
        if other != place:
            shutil.rmtree(other, ignore_errors=True)
    with atomic.explained(place):
        place.mkdir(exist_ok=True)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def _as_loaded(student: Any, base: LoadedModel, facts: Mapping[str, Any]) -> LoadedModel:
    """The student's blocks as a loaded model of the base model's name and precision."""
    loaded = wrap(student[0].auto_model, base.tokenizer, base.name)
    trained = {
        **{name: facts[name] for name in ("steps", "texts", "seed")},
        "base": base.identity.get("weights_sha256"),
    }
    loaded.identity = {
        **base.identity,
        "weights_sha256": loaded.identity["weights_sha256"],
        "trained": trained,
    }
    return loaded


def _head_of(student: Any, fitted_on: str) -> Head:
    """The student's dense layer as a head."""
    weight, bias = (
        part.detach().double().cpu().numpy()
        for part in (student[2].linear.weight, student[2].linear.bias)
    )
    return Head(np.zeros(weight.shape[1]), weight.T, fitted_on, bias)
