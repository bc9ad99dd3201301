"""The published layer-by-layer results, as data and as queries.

    from layerscope_paper import atlas
    atlas.models()                                        # what is there
    atlas.select_scores("Pythia-410m", "english")         # task × layer
    atlas.metric_values("Pythia-410m", "wikitext", "entropy_prompt")

Names are `family-size`, with `@revision` for a checkpoint: `Pythia-410m@step1000`.
`atlas/data/SOURCE.md` says where the tables come from and under which conventions they were made.
"""

from layerscope_paper.atlas.queries import (
    CONVENTIONS,
    correlation_tables,
    metric_values,
    probe_accuracies,
    select_scores,
)
from layerscope_paper.atlas.tables import (
    AtlasModel,
    find_model,
    metrics,
    models,
    problems,
    scores,
    tasks,
    vision,
)

__all__ = [
    "CONVENTIONS",
    "AtlasModel",
    "correlation_tables",
    "find_model",
    "metric_values",
    "metrics",
    "models",
    "probe_accuracies",
    "problems",
    "scores",
    "select_scores",
    "tasks",
    "vision",
]
