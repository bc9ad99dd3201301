"""Too many vectors for the store: which readouts are worth keeping, found out on a part of each task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layerscope.core.readout import READOUT_COLUMNS, Readout
from layerscope.progress import Progress
from layerscope.store import RunFolder
from layerscope.store.embeddings import EmbeddingStore

if TYPE_CHECKING:
    from layerscope.evaluation.job import EvaluationJob

# When all readouts of all texts would take more than this share of the store's budget, they are screened on a part first.
_SCREEN_ABOVE = 0.9
_SCREEN_SHARE = 0.3
_SCREEN_LEAST = 100
_SCREEN_KEEP = 6


def too_many(job: EvaluationJob, store: EmbeddingStore, dtype: str, texts: dict[str, list[str]]) -> bool:
    """Whether the store's budget does not hold all readouts of all texts."""
    return store.budget is not None and job.bytes(texts, dtype) > _SCREEN_ABOVE * store.budget


def screen(
    job: EvaluationJob,
    folder: RunFolder,
    store: EmbeddingStore,
    dtype: str,
    texts: dict[str, list[str]],
    facts: dict[str, Any],
    workers: int,
    batch_size: int | None,
    bar: Progress,
) -> None:
    """Too many vectors for the disk: score all readouts on a part of each task, and go on with the best of them."""
    assert store.budget is not None
    share = _SCREEN_SHARE * store.budget / job.bytes(texts, dtype)
    parts = [
        replace(spec, limit=min(facts[spec.name]["items"], max(_SCREEN_LEAST, int(share * facts[spec.name]["items"]))))
        for spec in job.specs
        if spec.name in facts
    ]
    small = type(job)(job.model, parts, job.readouts, [s.layer for s in job.sites], job.max_length, job.seed, job.unit)
    small.engine, small.recipe = job.engine, job.recipe
    # the part must fit: it is not screened again
    unbounded = EmbeddingStore(store.root, None)
    found = small.run_in(RunFolder(folder.path / "screen"), unbounded, dtype, workers, batch_size, bar, False)
    best = found.scores.groupby([*READOUT_COLUMNS, "task"])["score"].max().groupby(READOUT_COLUMNS).mean()
    order = best.dropna().sort_values(ascending=False).index[:_SCREEN_KEEP]
    kept = [Readout(*(str(part) for part in key)) for key in order]
    asked, default = len(job.readouts), [readout for readout in job.readouts if readout == Readout()]
    distinct = len({text for some in texts.values() for text in some})
    taken = job.bytes(texts, dtype) * found.manifest["counts"]["texts"] / distinct
    job.readouts = list(dict.fromkeys([*kept, *default]))
    while len(kept) > 1 and job.bytes(texts, dtype) > _SCREEN_ABOVE * store.budget - taken:
        kept.pop()
        job.readouts = list(dict.fromkeys([*kept, *default]))
    job.screened = {
        "of": asked,
        "kept": [readout.name for readout in kept],
        "items": {part.name: part.limit for part in parts},
        "budget": store.budget,
    }
