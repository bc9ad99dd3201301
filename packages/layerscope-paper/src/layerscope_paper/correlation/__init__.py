"""Correlations of metrics with scores across layers, beside those that chance alone gives.

from layerscope_paper import atlas, correlate
tables = atlas.correlation_tables("Pythia-410m")
correlate(tables.metrics, tables.scores).layers
correlate("runs/profile", "runs/evaluation").layers
over_models({name: correlate(t.metrics, t.scores) for name, t in tables_by_model.items()}).table
"""

from layerscope_paper.correlation.charts import correlation_charts
from layerscope_paper.correlation.pooled import ModelCorrelations, over_models
from layerscope_paper.correlation.study import (
    Correlations,
    Tables,
    correlate,
    from_folders,
    from_runs,
    same_tasks,
)

__all__ = [
    "Correlations",
    "ModelCorrelations",
    "Tables",
    "correlate",
    "correlation_charts",
    "from_folders",
    "from_runs",
    "over_models",
    "same_tasks",
]
