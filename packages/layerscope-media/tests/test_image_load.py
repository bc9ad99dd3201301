"""Image models from folders: with a processor of transformers, with our own, without one; the image
part of a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_images import (
    BLOCKS,
    IMAGE_FAMILIES,
    PATCHES,
    SIDE,
    WIDTH,
    build,
    iterate_states,
    pictures,
    processor,
)

from layerscope.errors import ModelError
from layerscope.models import load, wrap
from layerscope_media import ImageModel
from layerscope_media.pixels import PixelPreparation, PixelReader

_SAVED = [name for name in IMAGE_FAMILIES if not name.startswith("aim") or name == "aimv2"]
_PIL = {"size": {"height": SIDE, "width": SIDE}}


@pytest.mark.parametrize("name", _SAVED)
def test_a_saved_model_is_the_same_model(tmp_path: Path, name: str) -> None:
    module: Any = build(name)
    module.save_pretrained(tmp_path)
    prepares = processor(name) or hf.ViTImageProcessorPil(**_PIL)
    prepares.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert isinstance(model, ImageModel)
    assert model.kind == "images"
    assert model.identity["family"] == name.split("_class")[0].split("_unscaled")[0]
    assert model.identity["processor_from"] == "preprocessor_config.json"
    assert "torchvision" not in str(type(model.processor)).lower()
    here = wrap(module, prepares)
    images = pictures(3)
    ((_, saved),) = iterate_states(model, images)
    ((_, mine),) = iterate_states(here, images)  # type: ignore[arg-type]
    assert saved.shape == (BLOCKS + 1, 3, PATCHES, WIDTH)
    torch.testing.assert_close(saved, mine)


@pytest.mark.parametrize("pair", ["clip", "siglip"])
def test_the_image_part_of_an_image_and_text_model(tmp_path: Path, pair: str) -> None:
    small = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    vision = {**small, "image_size": SIDE, "patch_size": 8}
    name = {"clip": "CLIP", "siglip": "Siglip"}[pair]
    torch.manual_seed(0)
    both = getattr(hf, f"{name}Model")(
        getattr(hf, f"{name}Config")(text_config={**small, "vocab_size": 50}, vision_config=vision)
    ).eval()
    both.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert isinstance(model, ImageModel)
    assert (model.identity["family"], model.n_blocks) == (pair, 2)
    pixels = torch.randn(2, 3, SIDE, SIDE)
    with torch.inference_mode():
        wanted = both.vision_model(pixel_values=pixels).last_hidden_state
        torch.testing.assert_close(model.module(pixel_values=pixels).last_hidden_state, wanted)
    assert wrap(both).identity["family"] == pair


def test_a_classifier_is_read_without_its_head(tmp_path: Path) -> None:
    config = hf.ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=SIDE, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    classifier = hf.ViTForImageClassification(config)
    classifier.save_pretrained(tmp_path)
    assert load(tmp_path).identity["architecture"] == "ViTModel"
    assert wrap(classifier).identity["architecture"] == "ViTModel"


def test_our_own_preparation_is_saved_and_read(tmp_path: Path) -> None:
    module: Any = build("vit")
    module.save_pretrained(tmp_path)
    own = PixelPreparation(
        (SIDE, SIDE), 3, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), resize=40, resample="bicubic"
    )
    own.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert isinstance(model, ImageModel)
    assert model.processor == own
    assert model.identity["processor"]["mean"] == [0.1, 0.2, 0.3]


def test_without_a_processor_it_is_said(tmp_path: Path) -> None:
    module: Any = build("vit")
    module.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert "layerscope's default" in model.identity["processor_from"]


def test_the_processor_is_part_of_what_identifies_a_model() -> None:
    module = build("vit")
    one = wrap(module, PixelPreparation((SIDE, SIDE)))
    two = wrap(module, PixelPreparation((SIDE, SIDE), mean=(0.4,)))
    assert one.identity["weights_sha256"] == two.identity["weights_sha256"]
    assert one.identity["settings_sha256"] != two.identity["settings_sha256"]


def test_grey_and_colour_preparation_against_numpy() -> None:
    images = pictures(2, side=SIDE)
    with PixelReader(PixelPreparation((SIDE, SIDE), 3, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))) as reader:
        got = reader.read(images, [1])[0]
    wanted = (np.asarray(images.items[1], float) / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    np.testing.assert_allclose(got, wanted.transpose(2, 0, 1), rtol=1e-5, atol=1e-6)
    with PixelReader(PixelPreparation((8, 8), 1)) as reader:
        assert reader.read(images, [0])[0].shape == (1, 8, 8)


def test_texts_and_attention_are_refused(tmp_path: Path) -> None:
    module: Any = build("vit")
    module.save_pretrained(tmp_path)
    model = load(tmp_path)
    with pytest.raises(ModelError, match=r"reads images: give images \(data=\) instead of texts"):
        model.tokenize(["a text"])
    with pytest.raises(ModelError, match="cannot be chosen"):
        load(tmp_path, attention="causal")
    with pytest.raises(ModelError, match="palette"):
        wrap(build("imagegpt"))


def test_sizes_that_do_not_fit_are_named() -> None:
    model = wrap(build("clip"), PixelPreparation((24, 24)))
    assert isinstance(model, ImageModel)
    with PixelReader(model.processor) as reader:
        rows = reader.read(pictures(1), [0])
    with pytest.raises(ModelError, match="cannot read an image prepared as 3×24×24"):
        model.check_layout(rows[0])


def test_class_tokens_need_one() -> None:
    model: Any = wrap(build("siglip"))
    with pytest.raises(Exception, match="has no class token"):
        model.set_reading(pooling="class")
    with pytest.raises(Exception, match="Did you mean 'patches'"):
        model.set_reading(tokens="patch")
