"""Probes on frozen states of all layers, trained together."""

from layerscope.probing.job import probe
from layerscope.probing.run import ProbeRun

__all__ = ["ProbeRun", "probe"]
