"""Do the metrics say where the scores are? Associations across layers, with what chance alone would give.

from layerscope.correlation import correlate, from_atlas
tables = from_atlas("Pythia-410m")
correlate(tables.metrics, tables.scores).layers
"""

from layerscope.correlation.panel import mean_by_layer, same_tasks
from layerscope.correlation.sources import Tables, from_atlas, from_runs
from layerscope.correlation.study import Correlations, correlate

__all__ = ["Correlations", "Tables", "correlate", "from_atlas", "from_runs", "mean_by_layer", "same_tasks"]
