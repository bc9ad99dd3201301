"""Pickled checkpoints of reaction and antibody models: a made-up archive of the same format, and
the real ones at the end."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from layerscope_zoo import origins as mechanism
from layerscope_zoo.packages import Package
from pair_models import (
    ANTIBODIES_MASKED,
    ANTIBODIES_NEXT,
    CONDITIONS,
    SMILES,
    Checkpoint,
    symbol_tokenizer,
    write,
)

from layerscope.errors import ModelError
from layerscope.models import load
from layerscope.models.settings import quiet

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ATOMS = ["c", "C", "O", "N", "Cl", "Br", "[N+]", "[O-]", "(", ")", "1", "2", "=", ".", ">>", "%11"]
LETTERS = list("ACDEFGHIKLMNPQRSTVWY")
REACTION = "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1>>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
HEAVY = "EVQLVQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGNTNYAQKFQERVTITRDMSTSTAYMELSSLRSEDTAVYYCAAPYCSSISCNDGFDIWGQGTMVTVS"


def tiny_bert(words: list[str]) -> hf.BertForMaskedLM:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return hf.BertForMaskedLM(
        hf.BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes)
    ).eval()


def write_published(
    model: Any, words: list[str], folder: Path, more: dict[str, torch.Tensor] | None = None
) -> None:
    """A checkpoint as the packages have it: pickled, with tied weights, buffers and heads of their
    own."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({**model.state_dict(), **(more or {})}, folder / "pytorch_model.bin")
    given = model.config.to_dict()
    given.pop("model_type")  # rxnfp's files do not say
    (folder / "config.json").write_text(json.dumps({**given, "bos_token_id": 50256}))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")


def test_a_published_archive_becomes_a_folder_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SPECIAL, *ATOMS]
    model = tiny_bert(words)
    more = {
        "bert.embeddings.position_ids": torch.arange(64)[None],
        "bert.pooler.dense.weight": torch.zeros(16, 16),
        "cls.seq_relationship.bias": torch.zeros(2),
    }
    write_published(model, words, tmp_path / "published", more)
    wheel = tmp_path / "rxnfp.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in (tmp_path / "published").iterdir():
            archive.write(file, f"rxnfp/models/transformers/bert_pretrained/{file.name}")

    def give(_: Package, into: Path) -> Path:
        return Path(shutil.copy(wheel, into / "rxnfp.whl"))

    monkeypatch.setattr(mechanism, "fetch_package", give)
    write(["rxnfp-pretrained"], tmp_path)
    assert not list((tmp_path / "rxnfp-pretrained").glob("*.bin"))
    loaded = load(tmp_path / "rxnfp-pretrained", device="cpu")
    assert (loaded.n_blocks, loaded.width, loaded.max_length) == (2, 16, 64)
    (ids,) = loaded.tokenize(["CC(=O)Cl.OBr>>CC(=O)O%11"]).ids
    assert (
        " ".join(loaded.tokenizer.convert_ids_to_tokens(ids))
        == "[CLS] C C ( = O ) Cl . O Br >> C C ( = O ) O %11 [SEP]"
    )
    with torch.inference_mode():
        expected = model.bert(torch.tensor([ids])).last_hidden_state
        actual = loaded.module(torch.tensor([ids])).last_hidden_state
    torch.testing.assert_close(actual, expected)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    words = [*SPECIAL, *ATOMS]
    write_published(tiny_bert(words), words, tmp_path / "published")
    with (tmp_path / "published" / "pytorch_model.bin").open("wb") as sink:
        pickle.dump({"weight": Bad()}, sink, protocol=2)
    with pytest.raises(ModelError, match="without running code"):
        ANTIBODIES_MASKED.convert(tmp_path / "published", tmp_path / "ready")
    assert not (tmp_path / "ran").exists()


def test_vocabulary_and_weights_must_belong_together(tmp_path: Path) -> None:
    words = [*SPECIAL, *ATOMS]
    write_published(tiny_bert(words), words[:-1], tmp_path / "published")
    with pytest.raises(ModelError, match=r"20 tokens.*declares 21"):
        Checkpoint("bert", "BertForMaskedLM", SMILES).convert(
            tmp_path / "published", tmp_path / "ready"
        )


def test_one_line_serves_both_antibody_models(tmp_path: Path) -> None:
    config = hf.GPT2Config(
        vocab_size=33, n_embd=16, n_head=2, n_layer=2, n_positions=32, n_inner=24
    )
    words = [*SPECIAL, *LETTERS, *CONDITIONS]
    decoder = hf.GPT2LMHeadModel(config).eval()
    buffers = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32),
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    write_published(decoder, words, tmp_path / "decoder", buffers)
    ANTIBODIES_NEXT.convert(tmp_path / "decoder", tmp_path / "iglm")
    write_published(
        tiny_bert(words[:25]),
        words[:25],
        tmp_path / "encoder",
        {"cls.species.bias": torch.zeros(6)},
    )
    ANTIBODIES_MASKED.convert(tmp_path / "encoder", tmp_path / "antiberty")
    line = "[HEAVY][HUMAN]EV QJ"
    read = {}
    for name in ("iglm", "antiberty"):
        model = load(tmp_path / name, device="cpu")
        read[name] = model.tokenizer.convert_ids_to_tokens(model.tokenize([line]).ids[0])
    assert read["iglm"] == ["[HEAVY]", "[HUMAN]", "E", "V", "Q", "[UNK]", "[SEP]"]
    assert read["antiberty"] == ["[CLS]", "E", "V", "Q", "[UNK]", "[SEP]"]


def test_what_is_no_symbol_is_left_out() -> None:
    tokenizer = symbol_tokenizer([*SPECIAL, *ATOMS], SMILES, "[CLS] $A [SEP]")
    assert tokenizer.tokenize("C!!C [MASK]c") == ["C", "C", "[MASK]", "c"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        pytest.param("rxnfp-pretrained", None, marks=pytest.mark.slow),
        # what the package's own description prints for this reaction
        (
            "rxnfp-ft",
            [
                -2.0174953937530518,
                1.7602033615112305,
                -1.3323537111282349,
                -1.1095019578933716,
                1.2254549264907837,
            ],
        ),
        pytest.param("rxnfp-ft-10k", None, marks=pytest.mark.slow),
    ],
)
def test_real_reaction_models(folders: Path, name: str, printed: list[float] | None) -> None:
    write([name], folders)
    model = load(folders / name, device="cpu")
    ids = torch.tensor(model.tokenize([REACTION]).ids)
    assert not (ids == model.tokenizer.unk_token_id).any()
    with torch.inference_mode():
        first = model.module(ids).last_hidden_state[0, 0, :5]
    assert bool(first.isfinite().all())
    if printed is not None:
        torch.testing.assert_close(first, torch.tensor(printed), atol=1e-4, rtol=1e-4)


@pytest.mark.real
@pytest.mark.slow  # of a study's script, not of the catalogue
def test_real_masked_antibody_model_restores_conserved_residues(folders: Path) -> None:
    write(["antiberty"], folders)
    ids = torch.tensor(load(folders / "antiberty", device="cpu").tokenize([HEAVY]).ids)
    with quiet():
        model = hf.AutoModelForMaskedLM.from_pretrained(folders / "antiberty").eval()
    masked = ids.clone()
    places = [22, 36, 96]  # two cysteines and a tryptophan that nearly every antibody has
    masked[0, places] = 4
    with torch.inference_mode():
        guessed = model(masked).logits.argmax(-1)
    assert guessed[0, places].tolist() == ids[0, places].tolist()
