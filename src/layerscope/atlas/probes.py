"""Published accuracies of probes on image models, by the layer that was really read."""

from __future__ import annotations

import pandas as pd

from layerscope.atlas.names import AtlasModel, find_model
from layerscope.atlas.tables import as_text, coded
from layerscope.errors import LayerscopeError

# In the probe of these two label j is block j; in the others it is the entry before it, so that label 1 is the patch
# embeddings and the last block was never probed.
LABEL_IS_LAYER = ("aim", "aimv2")
BLOCKS = 24  # every probed model has as many


def probe_accuracies(model: str | AtlasModel, probe: str = "attention_probe") -> pd.DataFrame:
    """One row per layer: layer, depth, label (the paper's), top1, top5 (%). ImageNet-100, validation.

    >>> vit = probe_accuracies("vit-large")
    >>> int(vit["layer"].max()), int(vit["label"].max())
    (23, 24)
    """
    known = find_model(model)
    table = as_text(known.rows(coded("vision")))
    table = table[(table["probe"] == probe) & (table["first_layer"] == table["last_layer"])]
    if table.empty:
        what = probe.replace("_", " ")
        raise LayerscopeError(f"the atlas has no {what} of {known.name}. `layerscope atlas models` says what each model has.")
    wide = table[table["metric"].isin(["val_acc1", "val_acc5"])].pivot_table("value", "first_layer", "metric", aggfunc="last")
    label = wide.index.to_numpy().astype(int)
    layer = label if known.family in LABEL_IS_LAYER else label - 1
    found = pd.DataFrame({"layer": layer, "depth": layer / BLOCKS, "label": label})
    found["top1"], found["top5"] = wide["val_acc1"].to_numpy(float), wide["val_acc5"].to_numpy(float)
    return found.sort_values("layer", ignore_index=True)


def probes_or_none(model: AtlasModel) -> pd.DataFrame | None:
    """The same, or None where none were published."""
    try:
        return probe_accuracies(model)
    except LayerscopeError:
        return None
