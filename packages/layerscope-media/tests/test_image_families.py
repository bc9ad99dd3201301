"""Every image family: sites, norms and token layout against what the model itself returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_images import BLOCKS, IMAGE_FAMILIES, PATCHES, WIDTH, pictures, tiny_image_model
from torch import Tensor

from layerscope.capture import Capture, check_residual, expand_sites
from layerscope.capture.hooks import apply_norm
from layerscope_media import ImageModel
from layerscope_media.pixels import PixelReader

LEADING = {
    "vit": 1, "clip": 1, "siglip": 0, "beit": 1, "beit_class": 1, "beit_unscaled": 1, "dinov2": 1, "dinov2_with_registers": 4,
    "vit_mae": 1, "aimv2": 0, "imagegpt": 0, "aim": 0, "aim_causal": 0, "aim_prefix": 0,
}  # fmt: skip
NO_NORM = {"beit", "beit_unscaled"}
SEES_AHEAD = {name: name not in ("imagegpt", "aim_causal", "aim_prefix") for name in IMAGE_FAMILIES}


def rows_of(model: ImageModel, count: int = 3) -> list[np.ndarray]:
    with PixelReader(model.processor) as reader:
        return reader.read(pictures(count), range(count))


def own_outputs(model: ImageModel, rows: list[np.ndarray]) -> Any:
    """The module called directly, as its documentation says."""
    values = torch.from_numpy(np.stack(rows))
    given: dict[str, Any] = {
        "input_ids" if model.anatomy.family == "imagegpt" else "pixel_values": values
    }
    config: Any = model.module.config
    if model.anatomy.family == "vit_mae":
        config.mask_ratio = 0.0
        given["noise"] = torch.arange(PATCHES).float().expand(len(rows), -1)
    with torch.inference_mode():
        return model.module(**given, output_hidden_states=True)


def read(model: ImageModel, final_norm: Any) -> tuple[list[Tensor], Any]:
    rows = rows_of(model)
    batch, kept = model.make_batch(rows), {}
    sites = expand_sites(None, model.anatomy)
    with Capture(model.anatomy, sites, final_norm) as capture:
        capture.run(
            lambda: model.run(batch),
            lambda i, raw, norm: kept.update({i: apply_norm(norm, raw)}),
        )
    return [kept[i] for i in range(len(sites))], own_outputs(model, rows)


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_states_are_the_models_own(name: str) -> None:
    model = tiny_image_model(name)
    states, own = read(model, "hf")
    assert len(states) == BLOCKS + 1 == len(own.hidden_states)
    for k, (mine, theirs) in enumerate(zip(states, own.hidden_states, strict=True)):
        torch.testing.assert_close(mine, theirs, msg=f"layer {k}")
    assert states[0].shape == (3, LEADING[name] + PATCHES, WIDTH)


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_the_last_layer_with_the_norm_is_the_models_output(name: str) -> None:
    """Layer L includes the last block, and `applied` is what the model does after it."""
    model = tiny_image_model(name)
    states, own = read(model, "applied")
    if name == "clip":  # only the class token is normed, and it alone is handed on
        torch.testing.assert_close(states[-1][:, 0], own.pooler_output)
        torch.testing.assert_close(states[-1][:, 1:], own.last_hidden_state[:, 1:])
    else:
        torch.testing.assert_close(states[-1], own.last_hidden_state)
    raw, _ = read(model, "raw")
    assert not torch.allclose(raw[-1], raw[-2])
    assert (name in NO_NORM) == (model.anatomy.final_norm is None)
    assert (name in NO_NORM) == bool(torch.equal(states[1], raw[1]))


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_branches_add_up(name: str) -> None:
    """x + attn + mlp is the block's output, layer scale included."""
    model = tiny_image_model(name)
    batch = model.make_batch(rows_of(model))
    error = check_residual(model.anatomy, lambda: model.run(batch))
    assert error is not None
    assert error < 1e-5


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_tokens_in_front_of_the_patches(name: str) -> None:
    model = tiny_image_model(name)
    row = rows_of(model, 1)[0]
    assert model.anatomy.leading == LEADING[name]
    assert model.count_tokens(row) == LEADING[name] + PATCHES
    model.check_layout(row)
    assert model.lengths([row]) == [PATCHES]
    assert model.make_batch([row]).skip == LEADING[name]
    whole = model.make_batch([row], "all")
    assert (whole.skip, whole.lengths) == (0, [PATCHES + LEADING[name]])
    assert model.identity["bidirectional"] is SEES_AHEAD[name]


@pytest.mark.parametrize("name", [n for n in IMAGE_FAMILIES if n != "imagegpt"])
def test_patches_come_in_raster_order(name: str) -> None:
    """Pixels of one patch alone change the embedding at that patch's place, counted row by row."""
    model = tiny_image_model(name)
    row = rows_of(model, 1)[0]
    for place in (0, 5, PATCHES - 1):
        changed = row.copy()
        down, across = divmod(place, 4)
        changed[:, 8 * down : 8 * down + 8, 8 * across : 8 * across + 8] += 1
        kept: list[Tensor] = []
        sites = expand_sites(["embed"], model.anatomy)
        with Capture(model.anatomy, sites, "raw") as capture:
            for pixels in (row, changed):
                batch = model.make_batch([pixels])
                capture.run(
                    lambda batch=batch: model.run(batch),
                    lambda _i, raw, _norm, kept=kept: kept.append(raw.clone()),
                )
        differs = (kept[0] != kept[1]).any(-1)[0].nonzero().flatten().tolist()
        assert differs == [LEADING[name] + place]


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_who_sees_whom(name: str) -> None:
    """The last token's input reaches the first patch exactly where the family says that tokens see
    ahead."""
    model = tiny_image_model(name)
    row = rows_of(model, 1)[0]
    other = row.copy()
    if row.ndim == 1:
        other[-1] = (other[-1] + 1) % 8
    else:
        other[:, -8:, -8:] += 1
    firsts = []
    for pixels in (row, other):
        kept: dict[int, Tensor] = {}
        batch = model.make_batch([pixels])
        with Capture(model.anatomy, expand_sites(["block.*"], model.anatomy), "raw") as capture:
            capture.run(
                lambda batch=batch: model.run(batch),
                lambda i, raw, _norm, kept=kept: kept.update({i: raw}),
            )
        firsts.append(kept[BLOCKS - 1][0, LEADING[name]])
    assert torch.equal(*firsts) is not SEES_AHEAD[name]


def test_masked_autoencoder_is_left_as_it_was() -> None:
    model = tiny_image_model("vit_mae")
    config: Any = model.module.config
    before = config.mask_ratio
    model.run(model.make_batch(rows_of(model)))
    assert config.mask_ratio == before > 0


def test_a_model_without_a_family_is_found_by_its_structure() -> None:
    import transformers as hf

    from layerscope.models import wrap

    torch.manual_seed(0)
    config = hf.IJepaConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
    )
    model = wrap(hf.IJepaModel(config))
    assert isinstance(model, ImageModel)
    assert model.anatomy.family == "generic-images"
    assert model.anatomy.leading == 0
    states, own = read(model, "applied")
    torch.testing.assert_close(states[-1], own.last_hidden_state)


def test_class_token_of_a_model_without_a_family() -> None:
    import transformers as hf

    from layerscope.models import wrap

    config = hf.ViTMSNConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
    )
    model = wrap(hf.ViTMSNModel(config))
    assert model.anatomy.family == "generic-images"
    assert (model.anatomy.class_token, model.anatomy.leading) == (True, 1)
