"""A run of an evaluation through its steps: each is encoded while the one before it is scored."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from layerscope.capture import Site
from layerscope.core.formatting import describe_size, format_duration
from layerscope.core.readout import kinds_of
from layerscope.core.templates import get_template
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import RunFolderError
from layerscope.evaluation import steps
from layerscope.evaluation.encode import EncodePass, encode_by_workers, open_space, space_description
from layerscope.evaluation.plan import EvaluationPlan, Turn
from layerscope.evaluation.pool import peak_memory
from layerscope.evaluation.scoring import ScoreJob, ScoringContext, clear_caches, read_result
from layerscope.evaluation.steps import Results, Scorers, Step, steps_of, time_encoding, together, work_of
from layerscope.progress import Finish, Progress
from layerscope.store.embeddings import EmbeddingStore, Space, text_key

log = logging.getLogger(__name__)

TURNS = "vectors"  # a folder per turn, where not all fit the store; removed after it


@dataclass(frozen=True)
class Means:
    """A plan, and what carries it out. With a `recipe`, the engine's workers run the model."""

    plan: EvaluationPlan
    store: EmbeddingStore
    scoring_workers: int
    batch_size: int | None
    bar: Progress
    engine: Engine
    recipe: ModelRecipe | None = None

    @property
    def apart(self) -> bool:
        """Whether the model runs elsewhere than scores do: on one CPU they would only be in each other's way."""
        return self.recipe is not None or self.plan.model.device.type != "cpu"

    def passes(self, texts: Sequence[str], sites: Sequence[Site]) -> list[tuple[EncodePass, list[str]]]:
        """A pass per template, with the texts that are not in the store yet."""
        plan, out = self.plan, []
        for name, readouts in plan.by_template().items():
            template = get_template(name)
            space = open_space(self.store, plan.model, template, plan.max_length, plan.store_dtype)
            encode = EncodePass(plan.model, template, sites, kinds_of(readouts), space, plan.max_length, self.batch_size)
            out.append((encode, encode.missing(texts)))
        return out

    def encode(self, every: Sequence[str], sites: Sequence[Site]) -> tuple[int, dict[str, Space]]:
        """Encode texts that are not in the store yet; returns how many, and the spaces.

        While these are held, no other process prunes them before they are scored.
        """
        passes = self.passes(every, sites)
        total, todo = len(every) * len(passes), sum(len(missing) for _, missing in passes)
        self.bar.begin(f"{self.plan.model.name}|texts", total, total - todo)
        if self.recipe is not None:
            encode_by_workers(self.engine, self.recipe, passes, self.bar.advance)
        else:
            for encode, missing in passes:
                encode.run(missing, self.bar.advance)
        return todo, {encode.template.name: encode.space for encode, _ in passes}

    def context(self, run: Path) -> ScoringContext:
        plan, model = self.plan, self.plan.model
        spaces = tuple(
            (name, json.dumps(space_description(model.identity, get_template(name), plan.max_length)), plan.store_dtype)
            for name in plan.by_template()
        )
        revision = model.identity.get("revision")
        return ScoringContext(
            str(run), str(self.store.root), model.name, revision, model.width, spaces, plan.unit_length, plan.scoring
        )


class Walk:
    """The steps of a run, and what they left: counts, jobs and results, the tasks that could not be encoded, the vectors."""

    def __init__(self, means: Means, run: Path, texts: dict[str, list[str]], turns: Sequence[Turn], scorers: Scorers) -> None:
        self.means, self.run, self.texts, self.turns, self.scorers = means, run, texts, turns, scorers
        self.steps = steps_of(turns, texts, means.plan.max_length)
        self.counts: dict[str, Any] = {"encoded": 0, "truncated": {}}
        self.jobs, self.results, self.failed = list[ScoreJob](), list[dict[str, Any]](), list[dict[str, str]]()
        self.spaces, self.seconds, self.estimate = dict[str, Space](), {"encode": 0.0, "score": 0.0}, dict[str, float]()
        self._counted, self._under_way = set[str](), list[tuple[Step, Results, int]]()
        self._stores = {turn: means.store if len(turns) == 1 else EmbeddingStore(self._folder(turn), None) for turn in turns}

    def go(self) -> None:
        """Encode and score every step. The seconds are this process's: of scoring, what it waits for."""
        for old in set((self.run / TURNS).glob("*")) - set(map(self._folder, self.turns)):  # of a run that had more room, or less
            shutil.rmtree(old, ignore_errors=True)
        found = {step: {job: read_result(job.file(self._context(step))) for job in self._jobs(step)} for step in self.steps}
        todo = {step: [job for job, result in some.items() if result is None] for step, some in found.items()}
        left = {step: jobs for step, jobs in todo.items() if jobs}
        large = sum(len(self.texts[name]) for step in left for name in step.tasks) > steps.TOGETHER
        if large and len(left) > 1 and self.means.recipe is None:
            self._estimate(left)
        problem: Exception | None = None
        for step, unscored in todo.items():
            self.jobs += found[step]
            self.results += [result for result in found[step].values() if result is not None]
            if len(self.turns) > 1 and not unscored:
                continue
            turns = {one.turn for one in (step, *(one for one, *_ in self._under_way))}
            if len(self.turns) > 1 and sum(turn.bytes for turn in turns) > (self.means.store.budget or 0):
                self._finish()
            clock = time.perf_counter()
            try:
                self._encode(step)
            except RunFolderError:  # no room: the other steps have none either
                raise
            except Exception as error:
                if len(todo) == 1:
                    raise
                problem = error
                self.failed += [{"task": name, "reason": f"{type(error).__name__}: {error}"} for name in step.tasks]
                continue
            finally:
                self.seconds["encode"] += time.perf_counter() - clock
            self._under_way.append((step, self.scorers.start(self._context(step), unscored), len(unscored)))
            self._finish(1 if self.scorers.apart else 0)
        self._finish()
        if problem is not None and not self.results:
            raise problem

    def _folder(self, turn: Turn) -> Path:
        place = json.dumps([turn.tasks, [site.name for site in turn.sites]])
        return self.run / TURNS / hashlib.sha256(place.encode()).hexdigest()[:16]

    def _at(self, step: Step) -> Means:
        return replace(self.means, store=self._stores[step.turn])

    def _context(self, step: Step) -> ScoringContext:
        return self._at(step).context(self.run)

    def _jobs(self, step: Step) -> list[ScoreJob]:
        specs, places = {one.name: one for one in self.means.plan.specs}, product(self.means.plan.readouts, step.turn.sites)
        return [ScoreJob(specs[name], *place) for name, place in product(step.tasks, [(r, s.name, s.layer) for r, s in places])]

    def _texts(self, step: Step) -> list[str]:
        return list(dict.fromkeys(text for name in step.tasks for text in self.texts[name]))

    def _encode(self, step: Step) -> None:
        every, at = self._texts(step), self._at(step)
        count, spaces = at.encode(every, step.turn.sites)
        self.counts["encoded"] += count
        self.counts["store_bytes"] = max(self.counts.get("store_bytes", 0), at.store.size())
        keys = [text_key(text) for text in every if text not in self._counted]
        self._counted.update(every)
        for name, space in spaces.items():
            cut = int(space.read_numbers(keys, "truncated").sum()) if keys else 0
            self.counts["truncated"][name] = self.counts["truncated"].get(name, 0) + cut
        if len(self.turns) == 1:
            self.spaces |= spaces

    def _finish(self, ahead: int = 0) -> None:
        """Wait for what is being scored, but for so many steps; vectors of a turn go when its last step is done."""
        clock = time.perf_counter()
        while len(self._under_way) > ahead:
            step, started, count = self._under_way.pop(0)
            self.means.bar.begin("scoring|scores", count)
            for result in started:
                self.results.append(result)
                self.means.bar.advance(1)
            if len(self.turns) > 1 and step == [one for one in self.steps if one.turn == step.turn][-1]:
                clear_caches()
                shutil.rmtree(self._folder(step.turn), ignore_errors=True)
        self.seconds["score"] += time.perf_counter() - clock

    def _estimate(self, todo: dict[Step, list[ScoreJob]]) -> None:
        """Say what is left before it begins."""
        longest, seen, first = self.means.plan.max_length, set[str](), next(iter(todo))
        work, timed = [], self._at(first).passes(self._texts(first), first.turn.sites)
        for step in todo:
            passes = self._at(step).passes([text for text in self._texts(step) if text not in seen], step.turn.sites)
            seen.update(self._texts(step) if len(self.turns) == 1 else ())
            work.append(max(work_of(missing, longest) for _, missing in passes))
        rate, keys = time_encoding(timed, longest)
        if not keys:  # all is encoded
            return
        self.counts["encoded"] += len(keys)
        scratch, names = self.run / TURNS / "timed", dict.fromkeys(name for step in todo for name in step.tasks)
        shutil.copytree(self.run / "texts", scratch / "texts", dirs_exist_ok=True)
        context = replace(self._context(first), run=str(scratch), timed=tuple(dict.fromkeys(keys)))
        each, memory = self.scorers.seconds(context, {name: self._jobs(Step(first.turn, (name,)))[:3] for name in names})
        shutil.rmtree(scratch, ignore_errors=True)
        encode = [rate * one for one in work]
        score = [sum(each[n][0] for n in step.tasks) + sum(each[job.task.name][1] for job in jobs) for step, jobs in todo.items()]
        seconds, disk = together(encode, score, self.scorers.apart), max(turn.bytes for turn in self.turns)
        self.estimate = {"seconds": seconds, "encode": sum(encode), "score": sum(score), "disk_bytes": disk}
        self.estimate["memory_bytes"] = memory + peak_memory()
        parts = [f"encoding {format_duration(sum(encode))}, scoring {format_duration(sum(score))}"]
        parts += [f"vectors {describe_size(disk)} of disk, memory {describe_size(self.estimate['memory_bytes'])}"]
        log.warning(f"this should take {format_duration(seconds)} ({'; '.join(parts)}), by some texts and a layer of every task.")
        if isinstance(self.means.bar, Finish):
            self.means.bar.expect(seconds)
