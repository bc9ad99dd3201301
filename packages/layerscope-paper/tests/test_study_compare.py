"""The study that compares models: differences prompt by prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from study_independent import layer_entropies
from tests.tiny import _LLAMA, build_tiny, hf, tiny_model, tiny_tokenizer

from layerscope.engines import LocalEngine
from layerscope.models import wrap
from layerscope_paper.studies.run import StudyRun, study
from layerscope_paper.studies.shared import models as profiles


class Elsewhere(LocalEngine):
    """An engine whose workers are other processes, as far as a study can tell."""

    remote = True


def differences(
    run: StudyRun, metric: str = "prompt_entropy", normalization: str = "raw", sink: str = "keep"
):  # type: ignore[no-untyped-def]
    table = run.table[(run.table["kind"] == "difference") & (run.table["metric"] == metric)]
    return table[(table["normalization"] == normalization) & (table["sink"] == sink)].sort_values(
        "layer"
    )


def test_a_model_is_itself(texts: list[str]) -> None:
    run = study("compare", tiny_model("llama"), tiny_model("llama"), data=texts)
    rows = run.table[run.table["kind"] == "difference"]
    assert (rows[["value", "ci_low", "ci_high"]] == 0).all(axis=None)
    assert (rows["n"] == len(texts)).all()
    assert run.verdict[0] == "In short: tiny-llama (2) equals tiny-llama."
    assert "the same numbers as tiny-llama" in run.verdict[1]
    assert run.manifest["conventions"]["same_tokens"] == {
        "tiny-llama": True,
        "tiny-llama (2)": True,
    }


def test_differences_are_those_of_an_independent_computation(texts: list[str]) -> None:
    base, other = tiny_model("llama", 0), wrap(build_tiny("llama", 1), tiny_tokenizer(), "other")
    run = study("compare", base, other, data=texts)
    ids = [base.tokenize([text]).ids[0] for text in texts]
    for sink in ("keep", "drop"):
        one, two = (
            np.array([layer_entropies(model, row, sink) for row in ids]) for model in (base, other)
        )
        rows = differences(run, sink=sink)
        np.testing.assert_allclose(rows["value"], (two - one).mean(axis=0), atol=2e-5)
        by = np.log([len(row) - (sink == "drop") for row in ids])[:, None]
        np.testing.assert_allclose(
            differences(run, normalization="logN", sink=sink)["value"],
            ((two - one) / by).mean(0),
            atol=2e-5,
        )
        # the interval of paired differences is narrower than those of the two curves together
        spread = 1.96 * (two - one).std(axis=0, ddof=1) / np.sqrt(len(texts))
        np.testing.assert_allclose(rows["ci_high"] - rows["ci_low"], 2 * spread, rtol=0.25)
    curves = run.table[
        (run.table["kind"] == "value")
        & (run.table["metric"] == "curvature")
        & (run.table["sink"] == "keep")
    ]
    gap = (
        curves[curves["model"] == "other"]["value"].to_numpy()
        - curves[curves["model"] == "tiny-llama"]["value"].to_numpy()
    )
    np.testing.assert_allclose(differences(run, "curvature")["value"], gap, atol=1e-9)


def test_layers_meet_at_the_same_depth(texts: list[str]) -> None:
    deep = wrap(
        hf.LlamaModel(hf.LlamaConfig(**{**_LLAMA, "num_hidden_layers": 6})).eval(),
        tiny_tokenizer(),
        "deep",
    )
    run = study("compare", tiny_model("llama"), deep, data=texts[:4])
    rows = differences(run)
    assert rows["layer"].tolist() == [0, 1, 2, 3]
    curves = run.table[
        (run.table["metric"] == "prompt_entropy")
        & (run.table["sink"] == "keep")
        & (run.table["kind"] == "value")
    ]
    curves = curves[curves["normalization"] == "raw"].set_index(["model", "layer"])["value"]
    expected = [curves["deep", 2 * k] - curves["tiny-llama", k] for k in range(4)]
    np.testing.assert_allclose(rows["value"], expected, atol=1e-9)


def test_models_with_other_tokens_are_noted(texts: list[str]) -> None:
    run = study("compare", tiny_model("llama"), tiny_model("bert"), data=texts)
    assert (
        "tiny-bert cuts the texts into other tokens than tiny-llama" in run.manifest["warnings"][0]
    )
    assert any("log of the number of tokens" in sentence for sentence in run.verdict)
    assert run.plot().axes


def test_the_figure_has_a_panel_for_every_metric(texts: list[str]) -> None:
    run = study(
        "compare",
        tiny_model("llama"),
        tiny_model("gpt2"),
        data=texts,
        metrics="infonce,lidar,dime,dataset_entropy",
    )
    shown = [axis.get_title(loc="left") for axis in run.plot().axes if axis.get_visible()]
    assert {"Prompt entropy", "Curvature", "InfoNCE", "LiDAR", "DiME", "Dataset entropy"} <= set(
        shown
    )
    assert len(shown) == 6 + 4


def test_order_of_texts_does_not_matter(texts: list[str]) -> None:
    models = tiny_model("llama"), tiny_model("gpt2")
    one = study("compare", *models, data=texts)
    other = study("compare", *models, data=texts[::-1])
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(one.table[column], other.table[column], rtol=1e-7)
    assert one.verdict == other.verdict


def test_workers_elsewhere_are_given_the_models_name(
    model_folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, seen = profiles.profile, []

    def profile(model: object, *args: object, **settings: object) -> object:
        options = {name: settings[name] for name in ("dtype", "bidirectional") if name in settings}
        seen.append((model, settings.pop("engine"), options))
        return own(model, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(profiles, "profile", profile)
    engine = Elsewhere()
    models = [str(model_folder), f"{model_folder}?bidirectional=true"]
    run = study("compare", *models, data=texts[:3], engine=engine, dtype="float32")
    assert [held[:2] for held in seen] == [(str(model_folder), engine)] * 2
    assert seen[1][2] == {"dtype": "float32", "bidirectional": True}
    assert all(run.manifest["conventions"]["same_tokens"].values())


def test_settings_of_one_model(model_folder: Path, texts: list[str]) -> None:
    run = study(
        "compare",
        str(model_folder),
        f"{model_folder}?bidirectional=true&label=both ways",
        data=texts[:4],
    )
    assert set(run.table["model"]) == {"tiny-llama", "both ways"}
    held = run.manifest["conventions"]["models"]
    assert (held["tiny-llama"]["bidirectional"], held["both ways"]["bidirectional"]) == (
        False,
        True,
    )
    assert differences(run)["value"].abs().max() > 0.01
    from layerscope.errors import UnknownNameError

    with pytest.raises(
        UnknownNameError,
        match=r"unknown setting in .* 'bidirectionl'. Did you mean 'bidirectional'",
    ):
        study("compare", str(model_folder), f"{model_folder}?bidirectionl=true", data=texts[:4])
