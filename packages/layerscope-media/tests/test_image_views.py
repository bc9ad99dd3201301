"""Views of images and reading: seeded, independent of order and of processes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from layerscope.errors import DataError
from layerscope_media import ImageSet, PixelPreparation
from layerscope_media.pixels import AREA, PixelReader, _crop, augment, view_rng

PLAIN = PixelPreparation((16, 16))


def gradient(seed: int, color: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    base = np.linspace(0, 200, 16)[:, None] + rng.uniform(0, 40, (16, 16))
    values = np.stack([base, base[::-1], rng.uniform(0, 255, (16, 16))], -1) if color else base
    return values.astype(np.uint8)


IMAGES = ImageSet.of([gradient(i) for i in range(6)])


def test_views_belong_to_the_image_not_to_its_place() -> None:
    with PixelReader(PLAIN) as reader:
        here = reader.views(IMAGES, [2, 5], 3, seed=0)
        there = reader.views(IMAGES.select([5, 2]), [1, 0], 3, seed=0)
        other = reader.views(IMAGES, [2, 5], 3, seed=1)
    assert len(here) == 6
    np.testing.assert_array_equal(here, there)
    assert all(not np.array_equal(a, b) for a, b in zip(here, other, strict=True))
    assert len({row.tobytes() for row in here}) == 6


def test_more_views_leave_the_first_ones_alone() -> None:
    with PixelReader(PLAIN) as reader:
        two, four = reader.views(IMAGES, [0], 2, 0), reader.views(IMAGES, [0], 4, 0)
    np.testing.assert_array_equal(two, four[:2])


def test_processes_give_what_this_one_gives() -> None:
    with PixelReader(PLAIN, workers=0) as here, PixelReader(PLAIN, workers=2) as there:
        np.testing.assert_array_equal(here.read(IMAGES, range(6)), there.read(IMAGES, range(6)))
        np.testing.assert_array_equal(
            here.views(IMAGES, range(6), 2, 5), there.views(IMAGES, range(6), 2, 5)
        )


def test_an_image_that_breaks_later_is_an_error_of_ours() -> None:
    broken = ImageSet.of([b"nothing"])
    with (
        PixelReader(PLAIN, workers=2) as reader,
        pytest.raises(DataError, match="could not be prepared"),
    ):
        reader.read(broken, [0])


def test_transformers_processors_travel_to_processes() -> None:
    hf = pytest.importorskip("transformers")
    processor = hf.ViTImageProcessorPil(size={"height": 16, "width": 16})
    copied = pickle.loads(pickle.dumps(processor))
    with PixelReader(copied) as there, PixelReader(processor) as here:
        np.testing.assert_array_equal(here.read(IMAGES, [1, 3]), there.read(IMAGES, [1, 3]))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "I;16", "CMYK"])
def test_every_kind_of_picture_has_views(mode: str) -> None:
    picture = Image.fromarray(gradient(0)).convert("I" if mode == "I;16" else mode)
    view = augment(picture.convert(mode), view_rng(1, 0, 0))
    assert view.size == (16, 16)
    assert view.mode == ("L" if mode in ("L", "1", "I;16") else "RGB")


def test_grey_pictures_stay_grey() -> None:
    view = np.asarray(augment(Image.fromarray(gradient(1, color=False)), view_rng(0, 0, 0)))
    assert view.shape == (16, 16)


@given(st.integers(0, 2**63), st.integers(4, 300), st.integers(4, 300))
@settings(max_examples=60, deadline=None)
def test_crops_lie_inside_and_have_the_area(key: int, width: int, height: int) -> None:
    left, top, right, bottom = _crop((width, height), view_rng(key, 0, 0))
    assert 0 <= left < right <= width + 1e-9
    assert 0 <= top < bottom <= height + 1e-9
    share = (right - left) * (bottom - top) / (width * height)
    assert AREA[0] * 0.85 <= share <= AREA[1] + 1e-9


def test_flips_are_a_coin_and_blur_shrinks_detail() -> None:
    """Over many views: about half are mirrored, and detail is less than in the image."""
    ramp = np.tile(np.linspace(0, 255, 32).astype(np.uint8), (32, 1))
    views = [
        np.asarray(augment(Image.fromarray(ramp), view_rng(9, i, 0)), float) for i in range(200)
    ]
    mirrored = sum(view[:, 0].mean() > view[:, -1].mean() for view in views)
    assert 70 <= mirrored <= 130


def test_hues_turn_in_colour_only() -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 30))
    hues = {augment(red, view_rng(3, i, 0)).convert("HSV").getpixel((8, 8))[0] for i in range(40)}
    assert len(hues) > 10


def test_a_reader_can_be_sent_elsewhere() -> None:
    """A copy has the processor and starts workers of its own."""
    with PixelReader(PLAIN, workers=2) as reader:
        wanted = reader.read(IMAGES, [0, 4])
        with pickle.loads(pickle.dumps(reader)) as copied:
            np.testing.assert_array_equal(copied.read(IMAGES, [0, 4]), wanted)
