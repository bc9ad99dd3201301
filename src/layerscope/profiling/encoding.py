"""Forward passes over every shard that is not in the store yet, here or by an engine's workers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from layerscope.capture import check_residual, make_batch
from layerscope.engines.models import ModelRecipe
from layerscope.profiling.held import HeldShards, WriteBehind
from layerscope.profiling.passes import Encoder
from layerscope.profiling.plan import Plan
from layerscope.profiling.reading import ReadAhead, read_prompts
from layerscope.profiling.work import ShardWork, make_reducer
from layerscope.progress import Progress
from layerscope.store import ShardStore

if TYPE_CHECKING:
    from layerscope.profiling.job import Job


def encode(job: Job, plan: Plan, store: ShardStore | HeldShards, bar: Progress) -> dict[str, Any]:
    """Encode what is missing; a shard is done when it is in the store. Returns facts for the manifest."""
    per_prompt = 1 + job.config.n_views
    left = [i for i in range(len(plan.shards)) if not store.has(i)]
    done = plan.n_prompts - sum(len(plan.shards[i]) for i in left)
    bar.begin(f"{job.model.name}|{'texts' if plan.images is None else 'images'}", plan.n_prompts * per_prompt, done * per_prompt)
    facts: dict[str, Any] = {"resumed_prompts": done, "residual_error": None, "empty_views": 0}
    if not left:
        return facts
    if any(site.part for site in job.sites):
        facts["residual_error"] = _residual_error(job, plan)
    if job.recipe is None:
        facts["empty_views"] = _encode_here(job, plan, store, left, bar)
    else:
        facts["empty_views"] = _encode_by_workers(job, job.recipe, plan, store, left, bar)
        facts["engine"] = job.engine.facts()
    return facts


def _encode_here(job: Job, plan: Plan, store: ShardStore | HeldShards, left: list[int], bar: Progress) -> int:
    with ExitStack() as stack:
        reducer = stack.enter_context(make_reducer(job.model, job.sites, job.config))
        ahead = None
        if job.model.device.type == "cuda":  # a GPU would have to wait for texts and disks
            ahead = stack.enter_context(ReadAhead(job.model, plan, [plan.shards[i] for i in left], job.config))
        held = isinstance(store, HeldShards)
        encoder = Encoder(job.model, reducer, job.config, job.batch_size, on_device=held, ahead=ahead)
        write = stack.enter_context(WriteBehind(store)) if ahead is not None and not held else store.write
        for index in left:
            write(index, encoder.run(plan, plan.shards[index], bar.advance))
            _show(job, plan, store)
        return encoder.empty_views


def _encode_by_workers(
    job: Job, recipe: ModelRecipe, plan: Plan, store: ShardStore | HeldShards, left: list[int], bar: Progress
) -> int:
    """Workers encode, this process writes: what is in the store is there whatever happens to them."""
    work = ShardWork(recipe, job.sites, job.config, plan, job.batch_size)
    empty = 0
    for i, (shard, more) in job.engine.run(work, left, bar.advance):
        store.write(left[i], shard)
        empty += more
        _show(job, plan, store)
    return empty


def _show(job: Job, plan: Plan, store: ShardStore | HeldShards) -> None:
    if job.page is not None and isinstance(store, ShardStore):
        job.page.update(job, plan, store)


def _residual_error(job: Job, plan: Plan) -> float | None:
    if plan.images is not None:
        images = job.model.make_batch(read_prompts(job.model, plan, plan.shards[-1][-1:]))
        return check_residual(job.model.anatomy, lambda: job.model.run(images))
    shortest = plan.texts[int(plan.shards[-1][-1])]
    batch = make_batch(job.model.tokenize([shortest], min(plan.max_length, 64)).ids, job.model.pad_id, job.model.device)
    return check_residual(job.model.anatomy, lambda: job.model.run(batch))
