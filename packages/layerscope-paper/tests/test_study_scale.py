"""The study of sizes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from study_independent import layer_entropies
from tests.tiny import _LLAMA, hf, tiny_tokenizer

from layerscope.models import LoadedModel, wrap
from layerscope_paper.studies.run import study
from layerscope_paper.studies.shared.profiles import Valleys


def sized(blocks: int) -> LoadedModel:
    import torch

    torch.manual_seed(blocks)
    config = hf.LlamaConfig(**{**_LLAMA, "num_hidden_layers": blocks, "initializer_range": 0.2})
    return wrap(hf.LlamaModel(config).eval(), tiny_tokenizer(), f"llama-{blocks}")


def test_sizes_in_order_with_the_values_of_an_independent_computation(texts: list[str]) -> None:
    models = [sized(5), sized(3), sized(8)]
    run = study("scale", *models, data=texts)
    held = run.table.drop_duplicates("model")
    assert held["model"].tolist() == ["llama-3", "llama-5", "llama-8"]
    assert held["parameters"].is_monotonic_increasing
    for model in models:
        each = np.array(
            [layer_entropies(model, model.tokenize([text]).ids[0], "keep") for text in texts]
        )
        rows = run.table[(run.table["model"] == model.name) & (run.table["sink"] == "keep")]
        curve = rows[
            (rows["metric"] == "prompt_entropy") & (rows["normalization"] == "raw")
        ].sort_values("layer")
        np.testing.assert_allclose(curve["value"], each.mean(axis=0), atol=2e-5)
        assert curve["depth"].iloc[-1] == 1
        depth = rows[rows["metric"] == "valley_depth"]
        assert depth["value"].item() == pytest.approx(_deepest(each.mean(axis=0)), abs=5e-5)
    assert run.verdict[0].startswith("In short: with size, the deepest dip of prompt entropy")
    assert run.verdict[1].startswith("The deepest dip of prompt entropy")
    assert run.plot().axes


def _deepest(curve: np.ndarray) -> float:
    """By trying every inner layer."""
    return max(
        min(curve[: k + 1].max(), curve[k:].max()) - curve[k] for k in range(1, len(curve) - 1)
    )


def test_labels_of_valleys() -> None:
    def of(curve: list[float], without: list[float]) -> str:
        rng = np.random.default_rng(0)
        sites = ["embed", *(f"block.{k}" for k in range(len(curve) - 1))]
        rows = [
            {
                "prompt": i,
                "site": site,
                "prompt_entropy": a + noise,
                "prompt_entropy_sink_dropped": b + noise,
            }
            for i, noise in enumerate(0.01 * rng.standard_normal(20))
            for site, a, b in zip(sites, curve, without, strict=True)
        ]
        from types import SimpleNamespace

        run = SimpleNamespace(
            prompts=pd.DataFrame(rows), manifest={"model": {"n_blocks": len(curve) - 1}}
        )
        return Valleys.of(run, "m", 0, 20).sentence()  # type: ignore[arg-type]

    clear = of([4, 1, 4], [4, 3.9, 4])
    assert clear.startswith(
        "m has a valley at layer 1 of 2, 3.00 (3.00 to 3.00) nats deep; without the sink token none is left"
    )
    assert "one remains at layer 1, 2.00" in of([4, 1, 4], [4, 2, 4])
    assert of([4, 3.9, 4], [4, 4, 4]).startswith("m has no clear valley: its deepest dip is 0.10")
