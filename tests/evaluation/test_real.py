"""Real weights on real tasks: published scores, every layer against a plain encoder, and the quick
tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta
from threadpoolctl import threadpool_limits

from layerscope import evaluate
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.models import LoadedModel, load
from tests.evaluation.support import Listener, mteb_score
from tests.evaluation.tasks.support import shared_data

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def one_fit_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize(
    ("task", "published"),
    [("STS17", 87.59), pytest.param("STSBenchmark", 82.03, marks=pytest.mark.slow)],
)
def test_published_scores_of_the_last_layer(task: str, published: float, tmp_path: Path) -> None:
    run = evaluate(
        "minilm-l6", [task], out=tmp_path / "run", data_dir=shared_data(), store=tmp_path / "store",
        layers=[-1], max_length=256, scoring_workers=0,
    )  # fmt: skip
    scores = run.scores.set_index("task")["score"] * 100
    assert scores[task] == pytest.approx(published, abs=0.01)
    assert all(facts["exact"] for facts in run.manifest["tasks"].values())


class Read(AbsEncoder):
    """Vectors that were read before."""

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "tests/read", "revision": "1"}
        )
        self.vectors = vectors

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        return np.stack([self.vectors[text] for batch in inputs for text in batch["text"]])


def means_by_hand(
    model: LoadedModel, texts: set[str], layers: list[int]
) -> dict[tuple[int, str], dict[str, np.ndarray]]:
    """Mean vectors of texts by layer and norm; texts of one length go together, so that nothing is
    padded."""
    by_length: dict[int, list[tuple[str, list[int]]]] = {}
    for text in sorted(texts):
        ids = model.tokenizer(text)["input_ids"]
        assert len(ids) <= 256
        by_length.setdefault(len(ids), []).append((text, ids))
    found: dict[tuple[int, str], dict[str, np.ndarray]] = {
        (k, norm): {} for k in layers for norm in ("applied", "raw")
    }
    caught: list[torch.Tensor] = []
    handle = model.module.norm.register_forward_pre_hook(lambda _m, args: caught.append(args[0]))
    with torch.no_grad():
        for rows in by_length.values():
            caught.clear()
            ids = torch.tensor([ids for _, ids in rows])
            states = [*model.module(input_ids=ids, output_hidden_states=True).hidden_states[:-1]]
            states.append(caught[0])
            for layer in layers:
                both = {"raw": states[layer], "applied": model.module.norm(states[layer])}
                for norm, state in both.items():
                    found[layer, norm].update(
                        zip((text for text, _ in rows), state.mean(1).numpy(), strict=True)
                    )
    handle.remove()
    return found


@pytest.mark.slow
def test_layers_and_norms_of_a_real_model(tmp_path: Path) -> None:
    data, layers = shared_data(), [0, 12, 30]
    model = load("smollm2-135m")
    run = evaluate(
        model, ["STSBenchmark"], out=tmp_path / "run", data_dir=data, store=tmp_path / "store", layers=layers, sample=40,
        readouts=["plain/mean/applied", "plain/mean/raw"], scoring_workers=0,
    )  # fmt: skip
    task = resolve_tasks("STSBenchmark", data_dir=data, sample=40)[0].load().task
    listener = Listener()
    mteb_score(task, listener)
    assert run.manifest["counts"]["texts"] == len(listener.texts) > 70
    scores = run.scores.set_index(["layer", "final_norm"])["score"]
    assert len(scores) == 6
    for place, vectors in means_by_hand(model, listener.texts, layers).items():
        assert 100 * scores[place] == pytest.approx(
            100 * mteb_score(task, Read(vectors)), abs=0.01
        ), place
    assert scores.round(3).nunique() == 6


@pytest.mark.slow
def test_the_quick_tasks(tmp_path: Path) -> None:
    run = evaluate(
        "minilm-l6",
        "small",
        out=tmp_path / "run",
        store=tmp_path / "store",
        layers=[0, -1],
        sample=100,
        scoring_workers=0,
    )
    assert run.failed == []
    scores = run.scores.set_index(["task", "layer"])["score"]
    assert len(scores) == 8
    chance = {"TrecQuestions": 0.2, "SmsSpam": 0.5, "SentimentSnippets": 0.5, "LeeSimilarity": 0.3}
    for task, least in chance.items():
        assert least < scores[task, 6] <= 1
    assert run.gains[["ci_low", "ci_high"]].notna().all().all()
