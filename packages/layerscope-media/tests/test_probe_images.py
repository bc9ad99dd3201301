"""Probes of image models: labeled images, and states that are the model's own: patches, their mean,
the class token."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.profiling.support import assert_same_numbers
from tests.tiny import tiny_model
from tiny_images import BLOCKS, PATCHES, SIDE, pictures, tiny_image_model

import layerscope
from layerscope.capture import expand_sites
from layerscope.engines import LocalEngine, RayEngine
from layerscope.errors import DataError, ModelError
from layerscope.probing import probe
from layerscope.probing.states import ItemStates, Runner
from layerscope.progress import Silent
from layerscope_media import ImageSet
from layerscope_media.labeled import label_parts, labeled_images

QUICK: dict[str, Any] = {"epochs": 4, "trial": 1, "learning_rates": (1e-2, 3e-2), "progress": False}


def test_images_of_the_test_part_are_not_trained_on() -> None:
    images = pictures(9)
    shared = {"train": images.select(range(6)), "test": images.select(range(4, 9))}
    found = label_parts(shared)
    assert len(found.parts["train"]) == 4
    assert len(found.parts["test"]) == 5
    assert found.facts["dropped"] == {"also in another part": 2}
    np.testing.assert_array_equal(found.labels[found.parts["test"]], images.labels[4:9])  # type: ignore[index]
    assert np.array_equal(found.items.items[found.parts["train"][0]], images.items[0])


def test_a_folder_with_its_own_parts(tmp_path: Path) -> None:
    from PIL import Image

    for i, item in enumerate(pictures(8).items):
        part, kind = "train" if i < 6 else "test", "ab"[i % 2]
        (tmp_path / part / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(item).save(tmp_path / part / kind / f"{i}.png")  # type: ignore[arg-type]
    found = labeled_images(tmp_path)
    assert {part: len(where) for part, where in found.parts.items()} == {"train": 6, "test": 2}
    assert found.classes == ("a", "b")


def test_images_without_labels_are_refused() -> None:
    with pytest.raises(DataError, match="no labels"):
        label_parts({"": ImageSet.of([np.zeros((4, 4), np.uint8)])})


def hidden_states(model: object, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode():
        return model.module(pixels, output_hidden_states=True).hidden_states  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["vit", "vit_mae", "aim", "dinov2_with_registers"])
def test_image_states_are_the_models(family: str) -> None:
    model, images = tiny_image_model(family), pictures(5)
    sites = expand_sites(None, model.anatomy)
    numbers = np.array([3, 0, 4])
    runner = Runner(LocalEngine(), None, None, Silent())
    with ItemStates(model, images, 128, sites, "raw", runner) as states:
        tokens = states.tokens(numbers)
        means = states.vectors(numbers, "mean")
        assert states.has_class_token is bool(model.anatomy.class_token)
        if states.has_class_token:
            classes = states.vectors(numbers, "class")
    batch = model.make_batch(_rows(model, images, [3, 0, 4]))
    if family == "vit_mae":
        model.module.config.mask_ratio = 0.0
        with torch.inference_mode():
            noise = torch.arange(PATCHES).float().expand(3, -1)
            expected = model.module(
                batch.values, noise=noise, output_hidden_states=True
            ).hidden_states
    else:
        expected = hidden_states(model, batch.values)
    assert len(sites) == len(expected) == BLOCKS + 1, "the state after the last block is read"
    lead = model.anatomy.leading
    for layer, state in enumerate(expected):
        patches = state[:, lead:]
        torch.testing.assert_close(tokens[layer], patches, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(means[layer], patches.mean(1), rtol=1e-4, atol=1e-5)
        if states.has_class_token:
            np.testing.assert_allclose(classes[layer], state[:, 0], rtol=1e-4, atol=1e-5)
    assert tokens.shape[2] == PATCHES


def _rows(model: object, images: object, items: list[int]) -> list[np.ndarray]:
    from layerscope_media.pixels import PixelReader

    with PixelReader(model.processor) as reader:  # type: ignore[attr-defined]
        return reader.read(images, items)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["vit", "aim"])
def test_probes_of_images(family: str) -> None:
    images = pictures(60)
    run = probe(
        tiny_image_model(family), data=images, heads=["attention", "linear", "knn"], **QUICK
    )
    assert run.curve("attention")["layer"].tolist() == list(range(BLOCKS + 1))
    assert run.manifest["conventions"]["class_token"] is (family == "vit")
    if family == "vit":  # before the first block the class token is the same for every image
        assert run.curve("linear")["value"].iloc[0] <= 0.5


def test_images_have_pictures_and_classes() -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    images = ImageSet.of(
        list(rng.integers(0, 255, (20, SIDE, SIDE, 3), dtype=np.uint8)),
        [i % 2 for i in range(20)],
        ["a", "b"],
    )
    made = layerscope.profile(
        tiny_image_model("vit"), images, metrics=["dataset_entropy"], progress=False, map=True
    ).map()
    assert (made.kind, made.columns["class"]) == ("images", ["a", "b"] * 10)
    assert "length" not in made.columns
    assert Image.open(io.BytesIO(made.pictures)).size == (5 * 32, 5 * 32)
    assert made.without_texts().pictures is None


@pytest.mark.slow
def test_images_on_a_cluster(engine: RayEngine) -> None:
    model, images = tiny_image_model("vit"), pictures(40)
    here = layerscope.profile(model, data=images, views=2, permutations=2)
    there = layerscope.profile(model, data=images, views=2, permutations=2, engine=engine)
    assert_same_numbers(
        here.table, there.table, 1e-5
    )  # BLAS may round another way for another number of rows


def test_data_is_what_the_model_reads(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="reads texts"):
        probe(tiny_model("llama"), data=pictures(30), **QUICK)
    file = tmp_path / "labeled.csv"
    file.write_text("text,label\na,x\n")
    with pytest.raises(DataError, match="is one file; give a folder of class folders"):
        probe(tiny_image_model("vit"), file)
