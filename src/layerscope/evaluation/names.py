"""Names that tables of scores share with whoever reads them. Needs no model, so that reading a table stays quick."""

from __future__ import annotations

import pandas as pd

READOUT_COLUMNS = ["template", "pooling", "final_norm", "sink", "centring"]
"""The columns that tell how a text became a vector, in the order of a readout's name."""

DEFAULT_READOUT = "plain/mean/applied/keep/none"
"""The paper's: what the published scores are about, and what a user has who changes nothing."""


def readout_names(table: pd.DataFrame) -> list[str]:
    """The readout of each row, as one name."""
    return ["/".join(map(str, parts)) for parts in table[READOUT_COLUMNS].itertuples(index=False, name=None)]
