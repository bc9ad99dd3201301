"""Do the metrics say where the scores are? Associations across layers, with what chance alone would give.

from layerscope import atlas, correlate
tables = atlas.correlation_tables("Pythia-410m")
correlate(tables.metrics, tables.scores).layers
correlate("runs/profile", "runs/evaluation").layers
"""

from layerscope.correlation.study import Correlations, Tables, correlate, from_runs, mean_by_layer, same_tasks

__all__ = ["Correlations", "Tables", "correlate", "from_runs", "mean_by_layer", "same_tasks"]
