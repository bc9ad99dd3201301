"""Image sets: folders, parquet, hub datasets, Python; what cannot be decoded; order and draws."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tests.shared import offline

from layerscope.errors import (
    DataError,
    InvalidValueError,
    LayerscopeError,
    OfflineError,
    UnknownNameError,
)
from layerscope_media import ImageSet, load_images
from layerscope_media.imageset import decode


def picture(seed: int, size: tuple[int, int] = (10, 8)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)


def encoded(seed: int, kind: str = "PNG") -> bytes:
    held = io.BytesIO()
    Image.fromarray(picture(seed)).save(held, kind)
    return held.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of 3, 2 and 1 pictures, one more that is cut off, one that is no picture, and a
    note."""
    for label, count in (("ant", 3), ("bee", 2), ("cat", 1)):
        (tmp_path / label).mkdir()
        for i in range(count):
            (tmp_path / label / f"{i}.png").write_bytes(encoded(100 * count + i))
    (tmp_path / "bee" / "cut.jpg").write_bytes(encoded(7, "JPEG")[:200])
    (tmp_path / "cat" / "fake.png").write_text("not a picture")
    (tmp_path / "cat" / "note.txt").write_text("not meant to be read")
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_corrupt_images_are_left_out_counted_and_named(folder: Path, workers: int) -> None:
    images = load_images(folder, workers=workers)
    assert len(images) == 6
    assert images.dropped == {"corrupt": 2}
    assert sorted(name.split(" (")[0] for name in images.source["corrupt"]) == [
        "bee/cut.jpg",
        "cat/fake.png",
    ]
    assert images.classes == ("ant", "bee", "cat")
    assert images.names == (
        "ant/0.png",
        "bee/0.png",
        "cat/0.png",
        "ant/1.png",
        "bee/1.png",
        "ant/2.png",
    )
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 2, 0, 1, 0]
    np.testing.assert_array_equal(np.asarray(decode(images.items[1])), picture(200))


def test_a_limit_takes_classes_in_turn(folder: Path) -> None:
    images = load_images(folder, limit=3)
    assert images.labels is not None
    assert sorted(images.labels.tolist()) == [0, 1, 2]


def test_a_folder_of_pictures_has_no_labels(folder: Path) -> None:
    images = load_images(folder / "ant")
    assert images.labels is None
    assert images.names == ("0.png", "1.png", "2.png")


def test_splits_of_a_folder(folder: Path) -> None:
    assert len(load_images(folder, split="ant")) == 3
    with pytest.raises(
        DataError, match=r"no folder 'test' for the split \(it holds: ant, bee, cat\)"
    ):
        load_images(folder, split="test")


def test_fingerprints(folder: Path) -> None:
    images = load_images(folder)
    turned = images.select([5, 4, 3, 2, 1, 0])
    assert turned.fingerprint == images.fingerprint
    assert turned.ordered_fingerprint != images.ordered_fingerprint
    assert images.select([0, 1]).fingerprint != images.fingerprint
    assert turned.keys.tolist() == images.keys[::-1].tolist()
    relabelled = ImageSet.of(list(images.items), labels=[0] * 6)
    assert relabelled.fingerprint == images.fingerprint
    assert relabelled.ordered_fingerprint != images.ordered_fingerprint


def test_images_in_python() -> None:
    grey = np.zeros((4, 4), np.uint8)
    images = load_images(
        [picture(0), Image.fromarray(picture(1)), encoded(2), grey, grey.copy()],
        labels=[0, 1, 1, 0, 0],
    )
    assert len(images) == 5
    assert images.source["duplicates"] == 1
    np.testing.assert_array_equal(np.asarray(decode(images.items[1])), picture(1))
    with pytest.raises(DataError, match=r"image 0 is a float64 array of shape \(3, 3\)"):
        load_images([np.zeros((3, 3))])
    with pytest.raises(DataError, match="1 images were given with 2 labels"):
        load_images([grey], labels=[0, 1])


@pytest.mark.parametrize("struct", [True, False])
def test_parquet(tmp_path: Path, struct: bool) -> None:
    values: list[Any] = [encoded(i) for i in range(4)]
    values = [{"bytes": v, "path": f"{i}.png"} for i, v in enumerate(values)] if struct else values
    values.insert(2, None)
    values.append({"bytes": b"broken", "path": "broken.png"} if struct else b"broken")
    frame = pd.DataFrame({"image": values, "label": ["b", "a", "a", "b", "a", "b"]})
    frame.to_parquet(tmp_path / "images.parquet")
    images = load_images(tmp_path / "images.parquet")
    assert len(images) == 4
    assert images.dropped == {"null": 1, "corrupt": 1}
    assert images.source["corrupt"][0].startswith("row 5 (broken.png)" if struct else "row 5")
    assert images.classes == ("a", "b")
    assert images.labels is not None
    assert images.labels.tolist() == [1, 0, 1, 0]
    np.testing.assert_array_equal(np.asarray(decode(images.items[3])), picture(3))


def test_parquet_columns(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    pd.DataFrame({"photo": [encoded(0)], "kind": [3]}).to_parquet(path)
    with pytest.raises(DataError, match=r"It has photo, kind"):
        load_images(path)
    images = load_images(path, column="photo", label_column="kind")
    assert images.labels is not None
    assert images.labels.tolist() == [3]
    with pytest.raises(DataError, match="has no column 'picture'"):
        load_images(path, column="picture")


def test_hub_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    from layerscope_media import load as loading

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    data = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": encoded(0), "path": None}, {"bytes": b"broken", "path": None}],
            "label": [1, 0],
        },
        features=features,
    )
    monkeypatch.setattr(loading, "load_hub_dataset", lambda spec: data)
    images = load_images("some/pets")
    assert images.classes == ("cat", "dog")
    assert images.dropped == {"corrupt": 1}
    assert images.labels is not None
    assert images.labels.tolist() == [1]
    assert images.source["repo"] == "some/pets"


def test_digits() -> None:
    images = load_images("digits", limit=7)
    assert (len(images), images.name) == (7, "digits")
    assert images.labels is not None
    assert images.labels.tolist() == list(range(7))
    assert np.asarray(images.items[0]).shape == (8, 8)
    train, test = load_images("digits", split="train"), load_images("digits", split="test")
    assert len(train) + len(test) == 1797
    assert not set(train.digests) & set(test.digests)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'digits'"):
        load_images("digit")
    with pytest.raises(DataError, match="has no split 'dev'"):
        load_images("digits", split="dev")
    with pytest.raises(DataError, match="there is no folder or file"):
        load_images(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="holds no images"):
        load_images(tmp_path)
    (tmp_path / "one.png").write_bytes(b"no")
    with pytest.raises(DataError, match=r"none of 1 images can be decoded, e\.g\. one\.png"):
        load_images(tmp_path)
    with pytest.raises(DataError, match="is one file"):
        load_images(tmp_path / "one.png")
    with pytest.raises(InvalidValueError, match="limit is 0"):
        load_images("digits", limit=0)


def test_fashion_mnist_offline_without_a_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path))
    with offline(), pytest.raises(OfflineError, match="layerscope-zoo fetch fashion-mnist"):
        load_images("fashion-mnist")


def test_a_picture_is_turned_as_the_camera_says(tmp_path: Path) -> None:
    original = Image.fromarray(picture(3))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter to the right
    original.save(tmp_path / "photo.png", exif=exif)
    assert decode(tmp_path / "photo.png").size == (8, 10)


@pytest.mark.real
def test_fashion_mnist() -> None:
    try:
        images = load_images("fashion-mnist", split="test")
    except LayerscopeError as error:  # no network and not cached
        pytest.skip(str(error))
    assert len(images) == 10_000
    assert images.labels is not None
    assert np.bincount(images.labels).tolist() == [1000] * 10
    assert images.classes[images.labels[0]] == "ankle boot"
    assert np.asarray(images.items[0]).shape == (28, 28)


def table(tmp_path: Path, **columns: Any) -> Path:
    pd.DataFrame(columns).to_parquet(tmp_path / "images.parquet")
    return tmp_path / "images.parquet"


def test_a_negative_label_is_refused(tmp_path: Path) -> None:
    file = table(tmp_path, image=[encoded(i) for i in range(3)], label=[0, 1, -1])
    with pytest.raises(
        DataError,
        match=r"'label' holds the label -1; labels are numbers from 0.*leave such rows out",
    ):
        load_images(file)
    with pytest.raises(DataError, match="holds the label -2"):
        load_images([picture(0), picture(1)], labels=[1, -2])


def test_labels_far_apart_name_the_classes_that_occur(tmp_path: Path) -> None:
    images = load_images(
        table(tmp_path, image=[encoded(i) for i in range(3)], label=[10**9, 7, 10**9])
    )
    assert images.classes == ("7", "1000000000")
    assert images.labels is not None
    assert images.labels.tolist() == [1, 0, 1]


def test_a_table_opens_files_beside_it_only(tmp_path: Path) -> None:
    (tmp_path / "own.png").write_bytes(encoded(1))
    inside = table(
        tmp_path,
        image=[{"bytes": None, "path": "own.png"}, {"bytes": encoded(2), "path": "/nowhere/a.png"}],
    )
    assert len(load_images(inside)) == 2
    outside = tmp_path.parent / f"{tmp_path.name}-secret.png"
    outside.write_bytes(encoded(3))
    for path in (str(outside), f"../{outside.name}", "/nowhere/a.png", "own.png\0", "none.png"):
        file = table(tmp_path, image=[{"bytes": None, "path": path}])
        with pytest.raises(DataError, match="is not a file in"):
            load_images(file)
