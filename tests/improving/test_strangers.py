"""A run folder from a stranger: nothing that it says about itself makes its code run."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import layerscope
from layerscope.core.runs import MARKER
from layerscope.errors import LayerscopeError
from layerscope.exporting import verifying
from layerscope.exporting.pipeline import load_folder
from layerscope.store import checked
from layerscope.store.checked import record_files
from tests.cli.support import run_main
from tests.exporting.conftest import reload_here
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")
TEXTS = some_texts(50)
MODELS = "sentence_transformers.models"
EVIL = """
import pathlib
pathlib.Path({marker!r}).write_text("it ran")
import torch
class Evil(torch.nn.Module):
    def forward(self, features):
        return features
    @classmethod
    def load(cls, *args, **kwargs):
        return cls()
    from_pretrained = load
"""


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def add_module(folder: Path) -> None:
    """The genuine modules, and one more."""
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "", "type": "evil.Evil"},
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


def add_auto_map(folder: Path) -> None:
    """A class of the folder's own for the transformer and its settings."""
    edit(folder / "config.json", auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"})


def add_unknown_type(folder: Path) -> None:
    """A model type that only the folder's own code knows."""
    add_auto_map(folder)
    edit(folder / "config.json", model_type="evil")


def add_tokenizer(folder: Path) -> None:
    """A tokenizer of the folder's own."""
    classes = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    edit(folder / "tokenizer_config.json", auto_map=classes, tokenizer_class="Evil")


def add_settings(folder: Path) -> None:
    """Trust among the settings of a standard module, of the older and the newer names."""
    add_auto_map(folder)
    trusted = {"trust_remote_code": True}
    names = ("model_args", "config_args", "model_kwargs")
    edit(folder / "sentence_bert_config.json", **dict.fromkeys(names, trusted))
    edit(folder / "config_sentence_transformers.json", **trusted)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"{MODELS}.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


@pytest.fixture(scope="module")
def better(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("better")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LAYERSCOPE_CACHE", str(folder / "cache"))
        patched.setattr(verifying, "reload", reload_here)
        options = {"judge": "none", "templates": ["one-word"], "max_length": 96, "progress": False}
        return layerscope.improve(
            tiny_model("llama"), TEXTS, out=folder / "better", **options
        ).folder


@pytest.mark.parametrize(
    "attack", [add_module, add_auto_map, add_unknown_type, add_tokenizer, add_settings]
)
def test_no_code_of_a_folder_runs(
    better: Path,
    tmp_path: Path,
    attack: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    here: Callable[..., object],
) -> None:
    folder, marker = tmp_path / "given", tmp_path / "marker"
    shutil.copytree(better, folder)
    attack(folder)
    (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["evidence"]["needs_trust"] = True
    checked.write_json(folder / "manifest.json", manifest)
    edit(folder / MARKER, needs_trust=True, trust_remote_code=True)
    record_files(folder)  # whoever changes the files can change their checksums too

    for action in (
        lambda: layerscope.load_run(folder).encode(TEXTS[:2]),
        lambda: layerscope.profile(str(folder), TEXTS[:4], progress=False),
        lambda: layerscope.export(str(folder), 1, readout="plain/mean", out=tmp_path / "again"),
    ):
        with contextlib.suppress(LayerscopeError):
            action()
        assert not marker.exists()
    run_main(monkeypatch, capsys, "report", folder, "--out", tmp_path / "page.html")
    assert not marker.exists()


def test_what_is_not_a_standard_module_is_refused(better: Path, tmp_path: Path) -> None:
    folder = tmp_path / "given"
    shutil.copytree(better, folder)
    add_module(folder)
    record_files(folder)
    with pytest.raises(
        LayerscopeError, match=r"names the module 'evil.Evil'.*code of the folder's own is not run"
    ):
        layerscope.load_run(folder).encode(TEXTS[:2])


@pytest.mark.parametrize(
    "routed",
    [
        {"a": "evil.Evil"},
        {"a": "sentence_transformers.models.Router"},
        {"../a": "sentence_transformers.models.Dense"},
        [1],
    ],
)
def test_what_a_router_chooses_from_is_standard_too(tmp_path: Path, routed: object) -> None:
    (tmp_path / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": f"{MODELS}.Router"}])
    )
    (tmp_path / "router_config.json").write_text(
        json.dumps({"types": routed, "structure": {}, "parameters": {}})
    )
    with pytest.raises(
        LayerscopeError,
        match=r"router_config.json names the module .*code of the folder's own is not run",
    ):
        load_folder(tmp_path)
