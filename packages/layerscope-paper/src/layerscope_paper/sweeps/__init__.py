"""Sweeps: runs of many models, checkpoints and corpora from one file, with one table of all
values."""

from layerscope_paper.sweeps.run import Sweep, sweep

__all__ = ["Sweep", "sweep"]
