"""Exported folders, loaded by sentence-transformers, against states read by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from layerscope.core.heads import Head
from layerscope.errors import LayerscopeError
from layerscope.exporting import ExportError, cutting, export, verifying
from layerscope.exporting.verifying import cosine_distances
from tests.exporting.support import (
    MEAN,
    TEXTS,
    draft_of,
    finish_by_hand,
    joining_model,
    vectors_by_hand,
)
from tests.forking import run_python
from tests.tiny import tiny_model

st = pytest.importorskip("sentence_transformers")

HEAD = Head(MEAN, None, "some texts")
CASES = [
    *((family, "wmean", 1, "raw") for family in ("llama", "gpt_neox", "bert", "mamba")),
    *((family, "max", 1, "raw") for family in ("llama", "gpt_neox", "bert", "mamba")),
    *((family, "last", 3, "applied") for family in ("llama", "gpt_neox", "bert", "mamba")),
    *((family, "mean", 0, "applied") for family in ("llama", "gpt_neox", "bert", "mamba")),
    *((family, "mean", 2, "raw") for family in ("llama", "gpt_neox", "bert", "mamba")),
    *((family, "mean", 3, "raw") for family in ("llama", "gpt_neox", "bert", "mamba")),
    ("bert", "cls", 2, "raw"),
]


def encode(folder: Path, texts: list[str]) -> np.ndarray:
    return st.SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=3)


@pytest.mark.parametrize(("family", "pooling", "layer", "norm"), CASES)
def test_poolings(family: str, pooling: str, layer: int, norm: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    readout = f"plain/{pooling}/{norm}"
    draft_of(model, layer, readout, tmp_path)
    expected = vectors_by_hand(model, family, layer, readout, TEXTS)
    np.testing.assert_allclose(encode(tmp_path, TEXTS), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "centering", "unit"),
    [("llama", "corpus", True), ("mamba", "corpus", False), ("bert", "none", True)],
)
def test_template_centering_and_length(
    family: str, centering: str, unit: bool, tmp_path: Path
) -> None:
    model = tiny_model(family)
    readout = f"one-word/last/raw/keep/{centering}"
    head = HEAD if centering == "corpus" else None
    draft = draft_of(model, 2, readout, tmp_path, unit=unit, head=head, max_length=127)
    vectors = vectors_by_hand(model, family, 2, readout, TEXTS)
    expected = finish_by_hand(vectors, readout, unit)
    np.testing.assert_allclose(encode(tmp_path, TEXTS), expected, rtol=1e-4, atol=1e-4)
    modules = json.loads((tmp_path / "modules.json").read_text())
    names = ["Transformer", "Pooling"] + ["Dense"] * (centering == "corpus") + ["Normalize"] * unit
    assert [module["type"].rsplit(".")[-1] for module in modules] == names
    assert draft.head == head


WITH_ENVIRONMENT = """
import json, os, runpy, sys
os.environ.update(json.loads(sys.argv.pop()))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def forked(
    command: list[str], *, env: dict[str, str], cwd: Path, **_: object
) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that has imported everything but layerscope."""
    own = ["layerscope", "layerscope_zoo", "layerscope_gpu", "tests"]
    return run_python(WITH_ENVIRONMENT, *command[2:], json.dumps(env), cwd=cwd, without=own)


@pytest.mark.parametrize(
    "how", ["forked", pytest.param("fresh", marks=pytest.mark.slow)]
)  # to import all takes ten seconds
@pytest.mark.parametrize(
    ("family", "layer", "readout", "exact_when_cut"),
    [
        ("gpt_neox", 1, "one-word/last/raw/keep/corpus", False),
        ("modernbert", 0, "plain/cls/applied", True),
        ("joining", 3, "one-word/last/raw", False),  # the closing quote is lost, which is recorded
    ],
)
def test_fresh_process(
    how: str,
    family: str,
    layer: int,
    readout: str,
    exact_when_cut: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folder in a process that knows nothing of layerscope."""
    if how == "forked":
        monkeypatch.setattr(verifying, "subprocess", SimpleNamespace(run=forked))
    model = joining_model() if family == "joining" else tiny_model(family)
    monkeypatch.chdir(tmp_path)  # the fresh process works elsewhere
    draft = draft_of(model, layer, readout, Path("folder"), head=HEAD, max_length=64)
    verification = verifying.verify(draft)
    assert verification.cosine_distance < 1e-9
    assert verification.texts > 20
    assert verification.cut_texts >= 2
    assert set(verification.versions) == {"sentence_transformers", "transformers", "torch"}
    assert set(verification.texts_per_second) == {"original", "export"}
    assert min(verification.texts_per_second.values()) > 0
    assert draft.framed.exact_when_cut == exact_when_cut


@pytest.mark.usefixtures("here")
def test_tampering_is_noticed(tmp_path: Path) -> None:
    readout = "plain/mean/applied/keep/corpus"
    draft = draft_of(tiny_model("llama"), 2, readout, tmp_path, head=HEAD)
    assert verifying.verify(draft).cosine_distance < 1e-9

    def refuse(file: Path, change: bytes) -> None:
        before = file.read_bytes()
        file.write_bytes(change)
        with pytest.raises(ExportError, match="does not give back layer 2 of tiny-llama"):
            verifying.verify(draft)
        file.write_bytes(before)

    weights = load_file(tmp_path / "model.safetensors")
    weights["norm.weight"] = weights["norm.weight"] * (1 + 0.05 * torch.randn(32))
    save_file(weights, tmp_path / "changed.safetensors", metadata={"format": "pt"})
    refuse(tmp_path / "model.safetensors", (tmp_path / "changed.safetensors").read_bytes())
    pooling = tmp_path / "1_Pooling" / "config.json"
    modes = {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    refuse(pooling, json.dumps({**json.loads(pooling.read_text()), **modes}).encode())
    dense = tmp_path / "2_Dense" / "model.safetensors"
    bias = load_file(dense)
    save_file({**bias, "linear.bias": -bias["linear.bias"]}, tmp_path / "changed.safetensors")
    refuse(dense, (tmp_path / "changed.safetensors").read_bytes())


def test_a_folder_that_does_not_load_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = draft_of(tiny_model("llama"), 1, "plain/mean/applied", tmp_path)
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit('ValueError: no such thing')")
    monkeypatch.setattr(verifying.reload_child, "__file__", str(child))
    message = "could not be loaded in a fresh process: ValueError: no such thing"
    with pytest.raises(ExportError, match=message):
        verifying.verify(draft)


def test_cosine_distances_of_almost_equal_rows() -> None:
    rows = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    near = rows + np.array([[0.0, 1e-6], [0.0, 0.0], [1.0, 0.0]])
    assert cosine_distances(rows, near)[:2] == pytest.approx([5e-13, 0], rel=1e-3)
    assert np.isnan(cosine_distances(rows, near)[2])


@pytest.mark.usefixtures("here")
def test_half_precision(tmp_path: Path) -> None:
    model = tiny_model("llama")
    half = type(model)(
        model.module.to(torch.bfloat16),
        model.tokenizer,
        model.anatomy,
        "half",
        {**model.identity, "dtype": "bfloat16"},
    )
    draft = draft_of(half, 2, "plain/mean/raw/keep/corpus", tmp_path, head=HEAD)
    assert verifying.verify(draft).cosine_distance < 5e-3
    assert load_file(tmp_path / "model.safetensors")["norm.weight"].dtype == torch.bfloat16


def test_a_folder_that_reads_longer_texts_is_verified_on_one_that_it_cuts(tmp_path: Path) -> None:
    model = joining_model()
    draft = draft_of(model, 1, "one-word/last/raw", tmp_path, max_length=90, longer=True)
    assert (draft.max_length, draft.framed.max_length) == (90, 128)
    assert len(model.tokenizer(draft.texts[-1])["input_ids"]) > 128
    assert len(draft.framed.ids(draft.texts[-1:])[0]) == 128


def test_a_full_disk_is_not_taken_for_a_model_that_cannot_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError(
            "Error while serializing: IoError(Os { code: 28, message: No space left on device })"
        )

    monkeypatch.setattr(cutting, "write_weights", full)
    with pytest.raises(LayerscopeError, match="no space left on the disk") as caught:
        export(tiny_model("llama"), 2, out=tmp_path / "out")
    assert "cannot be cut" not in str(caught.value)
    assert not list(tmp_path.iterdir())
