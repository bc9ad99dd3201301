"""Profiles of image models: every number against float64 numpy on the model's own states; resuming;
what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.profiling.reference import PAPER, seven
from tests.profiling.support import assert_same_numbers
from tests.tiny import tiny_model
from tiny_images import BLOCKS, PATCHES, SIDE, build, pictures, tiny_image_model

from layerscope.errors import DataError, LayerscopeError
from layerscope.models import wrap
from layerscope.profiling import profile
from layerscope_media import ImageModel, ImageSet, PixelPreparation
from layerscope_media.pixels import PixelReader

IMAGES = pictures(8)
VIEWS = 3
QUIET: dict[str, Any] = {"progress": False}


def layer_norm(norm: Any) -> Any:
    weight, bias = norm.weight.detach().double().numpy(), norm.bias.detach().double().numpy()

    def apply(x: np.ndarray) -> np.ndarray:
        centered = x - x.mean(-1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + norm.eps) * weight + bias

    return apply


def own_states(module: Any, rows: list[np.ndarray], **given: Any) -> list[np.ndarray]:
    """Layers 0 to L of prepared images, one at a time, as transformers returns them (raw): (images,
    tokens, D) each."""
    out = []
    with torch.no_grad():
        for row in rows:
            held = module(
                pixel_values=torch.from_numpy(row[None]), output_hidden_states=True, **given
            ).hidden_states
            out.append([state[0].double().numpy() for state in held])
    return [np.stack(layer) for layer in zip(*out, strict=True)]


@pytest.mark.parametrize(
    ("name", "tokens", "pooling", "final_norm"),
    [
        ("vit", "patches", "mean", "applied"),
        ("vit", "all", "mean", "raw"),
        ("vit", "patches", "class", "applied"),
        ("vit", "patches", "mean", "hf"),
        ("dinov2_with_registers", "patches", "mean", "applied"),
        ("siglip", "patches", "mean", "applied"),
    ],
)
def test_every_number_is_that_of_numpy(
    name: str, tokens: str, pooling: str, final_norm: str
) -> None:
    model = tiny_image_model(name)
    run = profile(
        model,
        IMAGES,
        metrics=PAPER,
        views=VIEWS,
        tokens=tokens,
        image_pooling=pooling,
        final_norm=final_norm,
        seed=4,
        **QUIET,
    )
    order = np.argsort(IMAGES.keys)
    with PixelReader(model.processor) as reader:
        rows = reader.read(IMAGES, order)
        views = reader.views(IMAGES, order, VIEWS, 4)
    module: Any = model.module
    norm = layer_norm(module.post_layernorm if name == "siglip" else module.layernorm)
    prompts, viewed = own_states(module, rows), own_states(module, views)
    skip = model.anatomy.leading if tokens == "patches" else 0
    for layer in range(BLOCKS + 1):
        apply = (
            norm if final_norm == "applied" else (lambda x: x)
        )  # transformers leaves these models' last state raw
        raw = prompts[layer][:, skip:]
        pooled_views = apply(viewed[layer])
        pooled_views = pooled_views[:, 0] if pooling == "class" else pooled_views[:, skip:].mean(1)
        wanted = seven(list(apply(raw)), list(raw), pooled_views.reshape(len(IMAGES), VIEWS, -1), 4)
        if pooling == "class":
            # these pool the prompts as well; and at layer 0 every image has the same class token
            apart = {"dataset_entropy", "effective_rank"} | (
                {"lidar", "dime", "infonce"} if layer == 0 else set()
            )
            wanted = {key: value for key, value in wanted.items() if key[0] not in apart}
        for (metric, sink), value in wanted.items():
            curve = run.curve(metric, sink=sink)
            got = float(curve["value"].iloc[layer])
            assert got == pytest.approx(value, rel=2e-4, abs=2e-5), (metric, sink, layer)


def test_class_pooling_is_the_class_token() -> None:
    from tests.metrics import reference as formulas

    model = tiny_image_model("vit")
    run = profile(
        model, IMAGES, metrics=["dataset_entropy"], image_pooling="class", final_norm="raw", **QUIET
    )
    with PixelReader(model.processor) as reader:
        states = own_states(model.module, reader.read(IMAGES, range(len(IMAGES))))
    for layer in range(1, BLOCKS + 1):  # at layer 0 every image has the same class token
        wanted = formulas.dataset_entropy(states[layer][:, 0])
        assert float(run.curve("dataset_entropy")["value"].iloc[layer]) == pytest.approx(
            wanted, rel=1e-4
        )


def test_the_manifest_says_what_was_read() -> None:
    run = profile(tiny_image_model("dinov2_with_registers"), IMAGES, views=2, **QUIET)
    said = run.manifest["conventions"]
    assert said["tokens"] == "patches, class token, 3 registers left out, in raster order"
    assert said["pooling"] == "mean over patches, class token, 3 registers left out"
    assert (said["image_tokens"], said["image_pooling"], said["max_length"]) == (
        "patches",
        "mean",
        None,
    )
    assert "crop" in said["augmentations"]
    assert run.manifest["counts"]["tokens"] == {
        "shortest": PATCHES,
        "median": PATCHES,
        "longest": PATCHES,
    }
    assert run.manifest["model"]["processor"]["type"] == "PixelPreparation"
    assert "images of 16 tokens" in run._repr_html_()
    attention = profile(
        tiny_image_model("aim_prefix"), IMAGES, metrics=["curvature"], **QUIET
    ).manifest["conventions"]
    assert attention["attention"] == "prefix:5"


@pytest.mark.parametrize(
    "name", ["clip", "beit", "vit_mae", "aimv2", "imagegpt", "aim", "aim_causal"]
)
def test_every_family_is_profiled(name: str) -> None:
    run = profile(
        tiny_image_model(name),
        IMAGES,
        metrics=["prompt_entropy", "curvature", "infonce"],
        views=2,
        **QUIET,
    )
    assert np.isfinite(run.table["value"]).all()
    assert run.table["layer"].max() == BLOCKS


def test_order_and_batches_do_not_matter() -> None:
    model = tiny_image_model("vit")
    one = profile(model, IMAGES, views=2, **QUIET)
    other = profile(model, IMAGES.select(range(len(IMAGES))[::-1]), views=2, batch_size=1, **QUIET)
    assert_same_numbers(one.table, other.table)


def test_sub_sites_are_checked() -> None:
    run = profile(
        tiny_image_model("beit"), IMAGES, metrics=["dataset_entropy"], sites=["block.*.*"], **QUIET
    )
    assert run.manifest["conventions"]["residual_error"] < 1e-5
    assert "block.2.mlp" in set(run.table["site"])


def test_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerscope.profiling import encode
    from layerscope.profiling.encode import ShardEncoder

    model = tiny_image_model("vit")
    whole = profile(model, IMAGES, views=2, **QUIET)
    monkeypatch.setattr(encode, "choose_shard_size", lambda *_args: 3)
    calls = 0
    run_shard = ShardEncoder.run

    def broken(self: ShardEncoder, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return run_shard(self, *args)

    monkeypatch.setattr(ShardEncoder, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        profile(model, IMAGES, views=2, out=tmp_path / "run", **QUIET)
    calls = 10
    resumed = profile(model, IMAGES, views=2, out=tmp_path / "run", **QUIET)
    assert resumed.manifest["seconds"]["resumed_prompts"] == 3
    assert_same_numbers(whole.table, resumed.table)


def test_corrupt_images_are_in_the_warnings(tmp_path: Path) -> None:
    from PIL import Image

    for i in range(5):
        Image.fromarray(np.asarray(IMAGES.items[i])).save(tmp_path / f"{i}.png")
    (tmp_path / "zzz.png").write_bytes(b"broken")
    run = profile(tiny_image_model("vit"), data=tmp_path, metrics=["prompt_entropy"], **QUIET)
    assert run.manifest["counts"]["prompts"] == 5
    assert any(
        "1 images could not be decoded and were left out: zzz.png" in w
        for w in run.manifest["warnings"]
    )
    assert run.manifest["counts"]["dropped"] == {"corrupt": 1}


def test_what_does_not_go_together(tmp_path: Path) -> None:
    model = tiny_image_model("vit")
    with pytest.raises(DataError, match="reads images, not texts"):
        profile(model, **QUIET)
    with pytest.raises(DataError, match="reads texts, not images"):
        profile(tiny_model("gpt2"), IMAGES, **QUIET)
    with pytest.raises(LayerscopeError, match="max_length applies only to texts"):
        profile(model, IMAGES, max_length=3, **QUIET)
    with pytest.raises(LayerscopeError, match="applies only to texts"):
        profile(model, IMAGES, augmenter="builtin", **QUIET)
    with pytest.raises(DataError, match="limit goes with images that are yet to be read"):
        profile(model, IMAGES, limit=3, **QUIET)
    with pytest.raises(LayerscopeError, match="unknown tokens 'some'"):
        profile(model, IMAGES, tokens="some", **QUIET)
    with pytest.raises(LayerscopeError, match="has no class token"):
        profile(tiny_image_model("siglip"), IMAGES, image_pooling="class", **QUIET)
    with pytest.raises(DataError, match="column goes with images that are yet to be read"):
        profile(model, data=IMAGES, column="paper", **QUIET)


def test_no_layer_is_chosen_from_what_language_models_do(tmp_path: Path) -> None:
    from layerscope.choose.select import select
    from layerscope.report.contents import gather

    run = profile(
        tiny_image_model("vit"), IMAGES, metrics=["prompt_entropy"], out=tmp_path / "run", **QUIET
    )
    with pytest.raises(LayerscopeError, match="rest on scores of language models"):
        select(run)
    assert not gather([run]).choices


def test_images_of_different_sizes_are_refused() -> None:
    class Odd(PixelPreparation):
        """Leaves half of the images larger."""

        def prepare(self, image: Any) -> np.ndarray:
            return np.zeros(
                (3, SIDE, SIDE if image.getpixel((0, 0))[0] % 2 else 2 * SIDE), np.float32
            )

    model = wrap(build("siglip"), Odd((SIDE, SIDE)))
    assert isinstance(model, ImageModel)
    odd = ImageSet.of([np.full((4, 4, 3), value, np.uint8) for value in (1, 2, 3)])
    with pytest.raises(LayerscopeError):
        profile(model, odd, metrics=["prompt_entropy"], **QUIET)


def test_half_precision() -> None:
    model = wrap(build("vit").to(torch.bfloat16))
    run = profile(model, IMAGES, metrics=["prompt_entropy"], **QUIET)
    full = profile(tiny_image_model("vit"), IMAGES, metrics=["prompt_entropy"], **QUIET)
    assert np.allclose(run.table["value"], full.table["value"], rtol=0.05)


def test_names_mean_what_the_model_reads(tmp_path: Path) -> None:
    from PIL import Image

    build("vit").save_pretrained(tmp_path / "model")
    PixelPreparation((SIDE, SIDE)).save_pretrained(tmp_path / "model")
    (tmp_path / "pictures").mkdir()
    for i in range(4):
        Image.fromarray(np.asarray(IMAGES.items[i])).save(tmp_path / "pictures" / f"{i}.png")
    run = profile(
        tmp_path / "model", tmp_path / "pictures", limit=3, metrics=["prompt_entropy"], **QUIET
    )
    assert run.manifest["counts"]["prompts"] == 3
    assert run.manifest["conventions"]["image_tokens"] == "patches"
