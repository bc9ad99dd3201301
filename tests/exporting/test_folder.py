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
from tests.exporting.support import TEXTS, draft_of, joining_model, vectors_by_hand
from tests.forking import run_python
from tests.tiny import tiny_model

st = pytest.importorskip("sentence_transformers")

FAMILIES = ("llama", "gpt_neox", "bert", "mamba")
MEAN = np.linspace(-1, 1, 32)


def encode(folder: Path, texts: list[str]) -> np.ndarray:
    return st.SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["mean", "wmean", "last", "max"])
def test_poolings(family: str, pooling: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    for layer, norm in {
        "mean": ((0, "applied"), (2, "raw"), (3, "raw")),
        "last": ((3, "applied"),),
    }.get(pooling, ((1, "raw"),)):
        readout = f"plain/{pooling}/{norm}"
        folder = tmp_path / f"{layer}-{norm}"
        draft_of(model, layer, readout, folder)
        wanted = vectors_by_hand(model, family, layer, readout, TEXTS)
        np.testing.assert_allclose(
            encode(folder, TEXTS), wanted, rtol=1e-4, atol=1e-4, err_msg=str((layer, norm))
        )


def test_cls(tmp_path: Path) -> None:
    model = tiny_model("bert")
    draft_of(model, 2, "plain/cls/raw", tmp_path)
    wanted = vectors_by_hand(model, "bert", 2, "plain/cls/raw", TEXTS)
    np.testing.assert_allclose(encode(tmp_path, TEXTS), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "centering", "unit"),
    [("llama", "corpus", True), ("mamba", "corpus", False), ("bert", "none", True)],
)
def test_template_centering_and_length(
    family: str, centering: str, unit: bool, tmp_path: Path
) -> None:
    model = tiny_model(family)
    readout = f"one-word/last/raw/keep/{centering}"
    draft = draft_of(
        model,
        2,
        readout,
        tmp_path,
        unit=unit,
        head=Head(MEAN, None, "some texts"),
        max_length=127,
    )
    wanted = vectors_by_hand(model, family, 2, readout, TEXTS)
    wanted = wanted - MEAN if centering == "corpus" else wanted
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True) if unit else wanted
    np.testing.assert_allclose(encode(tmp_path, TEXTS), wanted, rtol=1e-4, atol=1e-4)
    listed = [
        module["type"].rsplit(".")[-1]
        for module in json.loads((tmp_path / "modules.json").read_text())
    ]
    assert (
        listed
        == ["Transformer", "Pooling"] + ["Dense"] * (centering == "corpus") + ["Normalize"] * unit
    )
    assert (draft.head and draft.head.fitted_on) == (
        "some texts" if centering == "corpus" else None
    )


WITH_ENVIRONMENT = """
import json, os, runpy, sys
os.environ.update(json.loads(sys.argv.pop()))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def forked(
    command: list[str], *, env: dict[str, str], cwd: Path, **_: object
) -> subprocess.CompletedProcess[str]:
    """A script in a process that has imported everything but layerscope."""
    own = ["layerscope", "layerscope_zoo", "layerscope_gpu", "tests"]
    return run_python(WITH_ENVIRONMENT, *command[2:], json.dumps(env), cwd=cwd, without=own)


@pytest.mark.parametrize(
    "how", ["forked", pytest.param("fresh", marks=pytest.mark.slow)]
)  # to import all takes ten seconds
def test_fresh_process(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several folders in one process that knows nothing of layerscope; the other families are
    reloaded in this one."""
    if how == "forked":
        monkeypatch.setattr(verifying, "subprocess", SimpleNamespace(run=forked))
    drafts = [
        draft_of(
            tiny_model(family),
            layer,
            readout,
            tmp_path / family,
            head=Head(MEAN, None, "some texts"),
            max_length=64,
        )
        for family, layer, readout in (
            ("gpt_neox", 1, "one-word/last/raw/keep/corpus"),
            ("modernbert", 0, "plain/cls/applied"),
        )
    ]
    drafts.append(
        draft_of(joining_model(), 3, "one-word/last/raw", tmp_path / "joining", max_length=64)
    )
    for draft in drafts:
        one = verifying.verify(draft)
        assert one.cosine_distance < 1e-9, draft.folder
        assert one.state_error < 1e-4
        assert one.texts > 20
        assert one.cut_texts >= 2
        assert set(one.versions) == {"sentence_transformers", "transformers", "torch"}
        assert set(one.texts_per_second) == {"original", "export"}
        assert min(one.texts_per_second.values()) > 0
    exact = [draft.framed.exact_when_cut for draft in drafts]
    assert exact == [False, True, False]  # the closing quote is lost there, and that is said


@pytest.mark.usefixtures("here")
def test_tampering_is_found(tmp_path: Path) -> None:
    model = tiny_model("llama")
    draft = draft_of(
        model,
        2,
        "plain/mean/applied/keep/corpus",
        tmp_path,
        head=Head(MEAN, None, "some texts"),
    )
    assert verifying.verify(draft).cosine_distance < 1e-9
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    weights = load_file(file)
    weights["norm.weight"] = weights["norm.weight"] * (1 + 0.05 * torch.randn(32))
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ExportError, match="does not give back layer 2 of tiny-llama"):
        verifying.verify(draft)
    file.write_bytes(whole)
    pooling = tmp_path / "1_Pooling" / "config.json"
    told = pooling.read_text()
    changed = {
        **json.loads(told),
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": True,
    }
    pooling.write_text(json.dumps(changed))
    with pytest.raises(ExportError, match="does not give back"):
        verifying.verify(draft)
    pooling.write_text(told)
    bias = load_file(tmp_path / "2_Dense" / "model.safetensors")
    save_file(
        {**bias, "linear.bias": -bias["linear.bias"]}, tmp_path / "2_Dense" / "model.safetensors"
    )
    with pytest.raises(ExportError, match="does not give back"):
        verifying.verify(draft)


def test_a_folder_that_does_not_load_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = draft_of(tiny_model("llama"), 1, "plain/mean/applied", tmp_path)
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit('ValueError: no such thing')")
    monkeypatch.setattr(verifying.reload_child, "__file__", str(child))
    with pytest.raises(
        ExportError, match="could not be loaded in a fresh process: ValueError: no such thing"
    ):
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
    draft = draft_of(
        half,
        2,
        "plain/mean/raw/keep/corpus",
        tmp_path,
        head=Head(MEAN, None, "some texts"),
    )
    assert verifying.verify(draft).cosine_distance < 5e-3
    assert load_file(tmp_path / "model.safetensors")["norm.weight"].dtype == torch.bfloat16


def test_the_fresh_process_is_told_a_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draft = draft_of(tiny_model("llama"), 1, "plain/mean/applied", Path("beside"))
    assert verifying._job(draft)["folder"] == str(tmp_path / "beside")


def test_a_folder_that_reads_longer_texts_is_verified_on_one_that_it_cuts(tmp_path: Path) -> None:
    model = joining_model()
    draft = draft_of(model, 1, "one-word/last/raw", tmp_path, max_length=90, longer=True)
    assert (draft.max_length, draft.framed.max_length) == (90, 128)
    assert len(model.tokenizer(draft.texts[-1])["input_ids"]) > 128
    assert len(draft.framed.ids(draft.texts[-1:])[0]) == 128


@pytest.mark.usefixtures("here")
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
    assert sorted(path.name for path in tmp_path.iterdir()) == []
