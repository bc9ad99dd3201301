"""Metrics of pooled vectors at many sites together."""

from collections.abc import Callable, Mapping, Sequence

from layerscope.metrics import Estimate

# A function that waits for the GPU and returns the sites' estimates by metric. It may instead store
# in each site what its metrics need.
Finish = Callable[[], Mapping[str, Sequence[Estimate]]]
