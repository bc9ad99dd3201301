"""A run of an evaluation through its steps: each is encoded while the one before it is scored."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from layerscope.capture import Site
from layerscope.core.formatting import count_of, describe_size, format_duration
from layerscope.core.readout import kinds_of
from layerscope.core.templates import get_template
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import LayerscopeError, ModelError, RunFolderError, os_advice
from layerscope.evaluation import steps
from layerscope.evaluation.encode import (
    EncodePass,
    open_space,
    space_description,
    stored_by_workers,
)
from layerscope.evaluation.plan import EvaluationPlan, Texts, Turn
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    clear_caches,
    read_result,
    reason_of,
)
from layerscope.evaluation.steps import (
    Results,
    Scorers,
    Size,
    Step,
    seconds_of,
    steps_of,
    time_encoding,
    work_of,
)
from layerscope.progress import Progress
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
        """Whether the model runs elsewhere than scores do: on one CPU they would only be in each
        other's way."""
        return self.recipe is not None or self.plan.model.device.type != "cpu"

    def passes(
        self, texts: Sequence[str], sites: Sequence[Site]
    ) -> list[tuple[EncodePass, list[str]]]:
        """A pass per template, with the texts that are not in the store yet."""
        plan, out = self.plan, []
        for name, readouts in plan.by_template().items():
            template = get_template(name)
            space = open_space(self.store, plan.model, template, plan.max_length, plan.store_dtype)
            encode = EncodePass(
                plan.model,
                template,
                sites,
                kinds_of(readouts),
                space,
                plan.max_length,
                self.batch_size,
            )
            out.append((encode, encode.missing(texts)))
        return out

    def encode(self, every: Sequence[str], sites: Sequence[Site]) -> tuple[int, dict[str, Space]]:
        """Encode texts that are not in the store yet; returns how many, and the spaces.

        While these are held, no other process prunes them before they are scored.
        """
        passes = self.passes(every, sites)
        total, todo = len(every) * len(passes), sum(len(missing) for _, missing in passes)
        self.bar.begin(f"{self.plan.model.name}|texts", total, total - todo)
        for encode, missing in passes:
            encode.run(missing, self.bar.advance)
        return todo, {encode.template.name: encode.space for encode, _ in passes}

    def context(self, run: Path) -> ScoringContext:
        plan, model = self.plan, self.plan.model
        spaces = tuple(
            (
                name,
                json.dumps(space_description(model.identity, get_template(name), plan.max_length)),
                plan.store_dtype,
            )
            for name in plan.by_template()
        )
        revision = model.identity.get("revision")
        return ScoringContext(
            str(run),
            str(self.store.root),
            model.name,
            revision,
            model.width,
            spaces,
            plan.unit_length,
            plan.scoring,
        )


class Ahead:
    """A turn whose texts workers encode, one step after the other: they go on while this process
    waits for scores."""

    def __init__(
        self, means: Means, texts: Mapping[Step, Sequence[str]], sites: Sequence[Site]
    ) -> None:
        self.means, self.texts, self.numbers = means, texts, dict[Step, list[int]]()
        encoding, seen = [encode for encode, _ in means.passes((), sites)], set[str]()
        passes = list[tuple[EncodePass, list[str]]]()
        for step, every in texts.items():
            self.numbers[step] = [len(passes) + i for i in range(len(encoding))]
            passes += [
                (encode, encode.missing([text for text in every if text not in seen]))
                for encode in encoding
            ]
            seen.update(every)
        self.left = [len(missing) for _, missing in passes]
        self.spaces = {encode.template.name: encode.space for encode in encoding}
        assert means.recipe is not None
        self.stored = stored_by_workers(means.engine, means.recipe, passes)

    def encode(self, step: Step) -> tuple[int, dict[str, Space]]:
        """Wait until a step's texts are in the store; as `Means.encode`."""
        own, total = self.numbers[step], len(self.texts[step]) * len(self.spaces)
        todo = left = sum(self.left[i] for i in own)
        self.means.bar.begin(f"{self.means.plan.model.name}|texts", total, total - todo)
        while left:
            number, count = next(self.stored)
            self.left[number] -= count
            if number in own:
                left -= count
                self.means.bar.advance(count)
        if not any(self.left):
            next(self.stored, None)  # workers have nothing left to do
        return todo, self.spaces


class Walk:
    """The steps of a run, and what they left: counts, jobs and results, the tasks that could not be
    encoded, the vectors."""

    def __init__(
        self, means: Means, run: Path, texts: Texts, facts: Mapping[str, Any], turns: list[Turn], scorers: Scorers,
        first: Sequence[str],
    ) -> None:  # fmt: skip
        self.means, self.run, self.texts, self.turns, self.scorers, self.first = (
            means,
            run,
            texts,
            turns,
            scorers,
            first,
        )
        self.sizes = {name: _size(facts[name], len(some)) for name, some in texts.items()}
        self.steps = steps_of(turns, texts, means.plan.max_length, first)
        self.counts: dict[str, Any] = {"encoded": 0, "truncated": {}}
        self.jobs, self.results, self.failed = (
            list[ScoreJob](),
            list[dict[str, Any]](),
            dict[str, str](),
        )
        self.spaces, self.seconds, self.estimate = (
            dict[str, Space](),
            {"encode": 0.0, "score": 0.0},
            dict[str, float](),
        )
        self._counted, self._under_way, self._work = (
            set[str](),
            list[tuple[Step, Results, int]](),
            0.0,
        )
        self._ahead: Ahead | None = None
        self._large = False
        self._stores = {
            turn: means.store if len(turns) == 1 else EmbeddingStore(self._folder(turn), None)
            for turn in turns
        }

    def go(self) -> None:
        """Encode and score every step. The seconds are this process's: of scoring, what it waits
        for."""
        for old in set((self.run / TURNS).glob("*")) - set(
            map(self._folder, self.turns)
        ):  # of a run that had more room, or less
            shutil.rmtree(old, ignore_errors=True)
        queue = [
            (step, jobs)
            for step in self.steps
            if (jobs := self._unscored(step)) or len(self.turns) == 1
        ]
        left = {step: jobs for step, jobs in queue if jobs}
        if sum(map(len, left.values())) == 1:
            self.scorers.pool.workers = 0  # not worth a process
        self._large = (
            len(left) > 1
            and sum(len(self.texts[name]) for step in left for name in step.tasks) > steps.TOGETHER
        )
        if self._large and self.means.recipe is None:
            try:
                self._estimate(list(left))
            except Exception as error:
                if _ends_all(error):
                    raise
                log.warning(f"no estimate of what encoding takes: {reason_of(error)}")
        try:
            problem = self._work_off(queue)
        finally:
            if self._ahead is not None:
                self._ahead.stored.close()
        if problem is not None and not self.results:
            raise problem

    def _work_off(self, queue: list[tuple[Step, list[ScoreJob]]]) -> Exception | None:
        """Go through the steps; returns why the last task that failed could not be encoded."""
        problem: Exception | None = None
        while queue:
            step, unscored = queue.pop(0)
            self._make_room(step)
            clock = time.perf_counter()
            try:
                self._encode(step, [step, *(one for one, _ in queue)])
            except Exception as error:
                if self.means.recipe is not None or _ends_all(error):
                    raise
                if len(step.tasks) > 1:  # each alone: what is encoded stays, and the others go on
                    jobs = {
                        name: [job for job in unscored if job.task.name == name]
                        for name in step.tasks
                    }
                    queue[:0] = [(Step(step.turn, (name,)), some) for name, some in jobs.items()]
                else:
                    problem = error
                    self.failed.setdefault(step.tasks[0], reason_of(error))
                continue
            finally:
                self.seconds["encode"] += time.perf_counter() - clock
            self._under_way.append(
                (step, self.scorers.start(self._context(step), unscored), len(unscored))
            )
            told = set(step.tasks) <= set(self.first)  # waited for: it says what the others take
            self._finish(1 if self.scorers.apart and not told else 0)
            self._tell_left(queue)
        self._finish()
        return problem

    def _folder(self, turn: Turn) -> Path:
        place = json.dumps([turn.tasks, [site.name for site in turn.sites]])
        return self.run / TURNS / hashlib.sha256(place.encode()).hexdigest()[:16]

    def _at(self, step: Step) -> Means:
        return replace(self.means, store=self._stores[step.turn])

    def _context(self, step: Step) -> ScoringContext:
        return self._at(step).context(self.run)

    def _unscored(self, step: Step) -> list[ScoreJob]:
        """The jobs of a step that have no result yet; results of the others are taken."""
        context = self._context(step)
        found = {job: read_result(job.file(context)) for job in self._jobs(step)}
        self.jobs += found
        self.results += [result for result in found.values() if result is not None]
        return [job for job, result in found.items() if result is None]

    def _jobs(self, step: Step) -> list[ScoreJob]:
        specs, places = (
            {one.name: one for one in self.means.plan.specs},
            product(self.means.plan.readouts, step.turn.sites),
        )
        return [
            ScoreJob(specs[name], *place)
            for name, place in product(step.tasks, [(r, s.name, s.layer) for r, s in places])
        ]

    def _texts(self, step: Step) -> list[str]:
        return list(dict.fromkeys(text for name in step.tasks for text in self.texts[name]))

    def _encode(self, step: Step, queue: Sequence[Step]) -> None:
        every, at = self._texts(step), self._at(step)
        if at.recipe is None:
            count, spaces = at.encode(every, step.turn.sites)
        else:
            if self._ahead is None or step not in self._ahead.texts:
                self._ahead = Ahead(
                    at,
                    {one: self._texts(one) for one in queue if one.turn == step.turn},
                    step.turn.sites,
                )
            count, spaces = self._ahead.encode(step)
        self._work += (
            work_of(every, self.means.plan.max_length) * count / max(1, len(every) * len(spaces))
        )
        self.counts["encoded"] += count
        self.counts["store_bytes"] = max(self.counts.get("store_bytes", 0), at.store.size())
        keys = [text_key(text) for text in every if text not in self._counted]
        self._counted.update(every)
        for name, space in spaces.items():
            cut = int(space.read_numbers(keys, "truncated").sum()) if keys else 0
            self.counts["truncated"][name] = self.counts["truncated"].get(name, 0) + cut
        if len(self.turns) == 1:
            self.spaces |= spaces

    def _make_room(self, step: Step) -> None:
        """Before a step of another turn: wait for what does not fit beside it, and remove the
        vectors of turns that are over."""
        turns = {step.turn, *(one.turn for one, *_ in self._under_way)}
        if len(self.turns) > 1 and sum(turn.bytes for turn in turns) > (
            self.means.store.size_limit or 0
        ):
            self._finish()
        kept = [self._folder(one.turn) for one, *_ in self._under_way]
        for folder in map(self._folder, self.turns[: self.turns.index(step.turn)]):
            if folder not in kept and folder.exists():
                clear_caches()
                shutil.rmtree(folder, ignore_errors=True)

    def _finish(self, ahead: int = 0) -> None:
        """Wait until at most `ahead` steps are still being scored."""
        clock = time.perf_counter()
        while len(self._under_way) > ahead:
            _, started, count = self._under_way.pop(0)
            self.means.bar.begin("scoring|scores", count)
            for result in started:
                self.results.append(result)
                self.means.bar.advance(1)
                count -= 1
            if count:
                raise LayerscopeError(
                    f"{count_of(count, 'scores')} did not come back. What was scored is kept: run it again."
                )
        self.seconds["score"] += time.perf_counter() - clock

    def _estimate(self, todo: Sequence[Step]) -> None:
        """Say what encoding takes before it begins, by some texts under every template."""
        longest, seconds = self.means.plan.max_length, 0.0
        seen, passes = set[str](), list[list[tuple[EncodePass, list[str]]]]()
        for step in todo:
            passes.append(
                self._at(step).passes(
                    [text for text in self._texts(step) if text not in seen], step.turn.sites
                )
            )
            seen.update(self._texts(step) if len(self.turns) == 1 else ())
        for some in zip(
            *passes, strict=True
        ):  # where most are missing: after a stop a step may lack one template alone
            encode, most = max(some, key=lambda one: len(one[1]))
            rate, count = time_encoding(encode, most, longest)
            seconds += rate * sum(work_of(missing, longest) for _, missing in some)
            self.counts["encoded"] += count
        if seconds:
            vectors = (
                4
                * self.means.plan.model.width
                * max(len(self.texts[name]) for step in todo for name in step.tasks)
            )
            disk, memory = max(turn.bytes for turn in self.turns), self.scorers.memory(vectors)
            self.estimate = {"encode": seconds, "disk_bytes": disk, "memory_bytes": memory}
            log.warning(
                f"encoding should take {format_duration(seconds)} and {describe_size(disk)} of disk, scoring up to "
                f"{describe_size(memory)} of memory. What scoring takes is said once a task of every kind was scored."
            )

    def _tell_left(self, queue: Sequence[tuple[Step, Sequence[ScoreJob]]]) -> None:
        """Say what the other tasks take, by what such tasks took so far, where one of every kind
        was scored."""
        left = [job.task.name for _, jobs in queue for job in jobs]
        if not self._large or not left:
            return
        took = [
            (self.sizes[result["task"]], result["seconds"])
            for result in self.results
            if "seconds" in result
        ]
        score = seconds_of([self.sizes[name] for name in left], took)
        if score is None:
            return
        score /= max(1, self.scorers.pool.size)
        work = sum(
            work_of(self._texts(step), self.means.plan.max_length) for step, jobs in queue if jobs
        )
        encode = self.seconds["encode"] * work / self._work if self._work else 0.0
        both = max(encode, score) if self.scorers.apart else encode + score
        self.estimate = {
            "encode_left": encode,
            "score_left": score,
            **self.estimate,
        }  # as it was said first
        s = [format_duration(some) for some in (both, encode, score)]
        log.warning(
            f"{count_of(len(set(left)), 'tasks')} left: {s[0]} (encoding {s[1]}, scoring {s[2]}) at the speed so far."
        )


def _size(fact: Mapping[str, Any], texts: int) -> Size:
    return Size(
        fact["task_type"], texts, fact["items"] if fact["task_type"] == "Clustering" else texts
    )


def _ends_all(error: Exception) -> bool:
    """Whether the other tasks would fail alike: of the model, the folder, the disk."""
    return isinstance(error, (RunFolderError, ModelError)) or bool(os_advice(error))
