"""Many models, checkpoints and corpora in one go: a file in, ordinary run folders and one table
out."""

from layerscope_paper.sweeps.run import Sweep, sweep

__all__ = ["Sweep", "sweep"]
