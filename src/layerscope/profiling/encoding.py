"""Forward passes over every shard that is not in the store yet, here or by an engine's workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from layerscope.capture import check_residual, make_batch
from layerscope.engines.models import ModelRecipe
from layerscope.profiling.held import HeldShards, WriteBehind
from layerscope.profiling.passes import Begun, Encoder, Queued
from layerscope.profiling.plan import Plan
from layerscope.profiling.planning import Planning
from layerscope.profiling.reading import ReadAhead, read_prompts, view_pool
from layerscope.profiling.work import ShardWork, make_reducer
from layerscope.progress import Progress
from layerscope.store import ShardStore

if TYPE_CHECKING:
    from layerscope.profiling.job import Job

_BEGUN_AT_MOST = 8  # shards whose prompts are run before their views, while those are being made


def encode(job: Job, plan: Plan, store: ShardStore | HeldShards, bar: Progress) -> dict[str, Any]:
    """Encode what is missing; a shard is done when it is in the store. Returns facts for the manifest."""
    left = [i for i in range(len(plan.shards)) if not store.has(i)]
    done = plan.n_prompts - sum(len(plan.shards[i]) for i in left)
    _begin_bar(job, plan, bar, done * (1 + job.config.n_views))
    facts = _facts(done)
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


def encode_held(job: Job, texts: Sequence[str], store: HeldShards, bar: Progress, shard_size: int) -> tuple[Plan, dict[str, Any]]:
    """Plan and encode texts whose shards stay in memory. The first are run while the others are still tokenised."""
    model, config, facts = job.model, job.config, _facts(0)
    with ExitStack() as stack:
        pool = view_pool(model, config, len(texts))  # its processes start up meanwhile
        if pool is not None:
            stack.enter_context(pool)
        inside = any(site.part for site in job.sites)
        planning = stack.enter_context(Planning(model, texts, config.max_length, shard_size, early=not inside))
        if inside:  # before there are other hooks
            facts["residual_error"] = _residual_error(job, planning.plan())
        reducer = stack.enter_context(make_reducer(model, job.sites, config))
        encoder = Encoder(model, reducer, config, job.batch_size, on_device=True)
        begun = deque[Begun]()
        plan = planning.first() or planning.plan()
        if planning.early:
            begun.append(encoder.begin(plan, plan.shards[0], lambda n: None))
        ahead = encoder.ahead = stack.enter_context(ReadAhead(model, plan, plan.shards, config, pool))
        if planning.early:
            plan = planning.plan()
            ahead.add(plan, plan.shards[1:])
        _begin_bar(job, plan, bar, sum(len(shard.shard) for shard in begun))
        _run_held(encoder, ahead, plan, begun, store, bar)
        facts["empty_views"] = encoder.empty_views
    return plan, facts


def _run_held(encoder: Encoder, ahead: ReadAhead, plan: Plan, begun: deque[Begun], store: HeldShards, bar: Progress) -> None:
    """Run every shard of a plan, some of which are begun. A GPU that would wait for views gets the next prompts instead."""
    views, waiting, queued, kept = encoder.config.n_views, deque(plan.shards[len(begun) :]), deque[Queued](), 0
    while waiting or begun or queued:
        if begun and (not views or not waiting or len(begun) >= _BEGUN_AT_MOST or ahead.has_views(begun[0].shard)):
            shard = begun.popleft()
            if views:
                encoder.run_views(plan, shard, bar.advance)
            queued.append(encoder.queue(shard))
            if not waiting and not begun:
                ahead.end_views()
        elif waiting:
            begun.append(encoder.begin(plan, waiting.popleft(), bar.advance))
        # the host waits for a shard while another one's passes are queued
        while len(queued) > 1 or (queued and not waiting and not begun):
            store.write(kept, encoder.finish(queued.popleft()))
            kept += 1


def _begin_bar(job: Job, plan: Plan, bar: Progress, done: int) -> None:
    what = "texts" if plan.images is None else "images"
    bar.begin(f"{job.model.name}|{what}", plan.n_prompts * (1 + job.config.n_views), done)


def _facts(resumed: int) -> dict[str, Any]:
    return {"resumed_prompts": resumed, "residual_error": None, "empty_views": 0}


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
