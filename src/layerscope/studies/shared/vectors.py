"""Vectors and entropies of token ids at every layer, for studies that compare sets of texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerscope.capture import Batch, Reducer, expand_sites
from layerscope.forward import BatchRunner
from layerscope.metrics import Options
from layerscope.models import LoadedModel
from layerscope.progress import Progress


def reduce_prompts(
    model: LoadedModel, prompts: Sequence[Sequence[int] | np.ndarray], final_norm: str, bar: Progress, *fields: str
) -> dict[str, np.ndarray]:
    """Fields of token ids at every layer: mean-pooled `vectors` (layers, prompts, D), and prompt entropies (layers, prompts).

    The entropies are `keep` (of all tokens) and `drop` (without the sink token). A prompt without a token has NaN.
    """
    sites = expand_sites(None, model.anatomy)
    usable = [i for i, row in enumerate(prompts) if len(row)]
    size, entropy = (len(sites), len(prompts)), {*fields} != {"vectors"}
    out = {name: np.full(size, np.nan) for name in fields if name != "vectors"}
    if "vectors" in fields:
        out["vectors"] = np.full((*size, model.width), np.nan, dtype=np.float32)
    with Reducer(model.anatomy, sites, final_norm, Options(), entropy=entropy, curvature=False) as reducer:  # type: ignore[arg-type]

        def keep(numbers: list[int], batch: Batch) -> None:
            reduced = reducer.run(batch, model.run, token_level=entropy)
            for name, values in out.items():
                values[:, [usable[i] for i in numbers]] = (
                    reduced.pooled if name == "vectors" else reduced.tokens[f"entropy_{name}"]
                )
            bar.advance(len(numbers))

        BatchRunner(model).run([np.asarray(prompts[i]) for i in usable], keep)
    return out
