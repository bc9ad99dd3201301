"""model2vec: a static model, one vector per token of the vocabulary, distilled from the chosen layer and readout.

Every token is read through the model alone, inside the readout's template and the tokenizer's special tokens. The vectors are
reduced by PCA and weighted by SIF under Zipf's law, as model2vec's `distill` does. A text's vector is the mean over its tokens:
no transformer runs any more. Layout: `model2vec/`, which `model2vec.StaticModel.from_pretrained` and sentence-transformers open.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import save_file

from layerscope.core.formatting import describe_size
from layerscope.core.statistics import spearman
from layerscope.errors import ExportError
from layerscope.exporting.draft import Draft, ExportFormat
from layerscope.exporting.verifying import finished, pooled_vectors
from layerscope.store import atomic

FOLDER = "model2vec"
DIMENSIONS = 256  # model2vec's defaults
SIF = 1e-4
MAX_LENGTH = 512
_BATCH = 256
_UNUSED = re.compile(r"\[unused\d+\]")
_TASK = "LeeSimilarity"


def write_static(draft: Draft) -> dict[str, Any]:
    """Distill, write the folder, and measure it beside the model it was made from."""
    core = bare_tokenizer(draft)
    vocabulary = core.get_vocab()
    before, after = frame_of(draft)
    words = content_ids(core, draft)
    rows = [[*before, token, *after] for token in words]
    vectors = pooled_vectors(draft.model, rows, draft.layer, draft.readout, _BATCH)
    if not np.isfinite(vectors).all():
        raise ExportError("the states of some tokens are not finite: no static model can be made from this layer.")
    reduced, explained = pca(vectors, min(DIMENSIONS, vectors.shape[1]))
    weighted = (reduced * sif_weights(len(words))[:, None]).astype(np.float16)
    place = {token: row for row, token in enumerate(sorted(vocabulary.values()))}
    table = np.zeros((len(place), weighted.shape[1]), dtype=np.float16)
    table[[place[token] for token in words]] = weighted
    arrays = {"embeddings": table}
    if list(place) != list(range(len(place))):  # a vocabulary with gaps
        arrays["mapping"] = np.zeros(max(place) + 1, dtype=np.int64)
        arrays["mapping"][list(place)] = list(place.values())
    folder = draft.folder / FOLDER
    _write(draft, folder, core, arrays)
    return {
        "folder": FOLDER,
        "tokens": len(words),
        "dimensions": int(table.shape[1]),
        "pca_explained": explained,
        "sif": SIF,
        "frame": [len(before), len(after)],
        "bytes": (folder / "model.safetensors").stat().st_size,
        **_scores(draft, core, arrays),
    }


def bare_tokenizer(draft: Draft) -> Any:
    """The model's own tokenizer without template, padding, length and special tokens; a text's first word is as any other."""
    from tokenizers import Tokenizer

    if not getattr(draft.model.tokenizer, "is_fast", False):
        raise ExportError(f"{draft.model.name} has no fast tokenizer, which a static model needs.")
    told = json.loads(draft.model.tokenizer.backend_tokenizer.to_str())
    told |= {"truncation": None, "padding": None, "post_processor": None}
    _prefix_space(told.get("pre_tokenizer"))
    return Tokenizer.from_str(json.dumps(told))


def _prefix_space(step: Any) -> None:
    for inner in (step or {}).get("pretokenizers", [step] if step else []):
        if inner.get("type") == "ByteLevel":
            inner["add_prefix_space"] = True
        elif inner.get("type") == "Metaspace":
            inner["prepend_scheme"] = "always"


def content_ids(core: Any, draft: Draft) -> list[int]:
    """The tokens that stand for text, in the vocabulary's order, which is about that of their frequency."""
    special = {token for token, one in core.get_added_tokens_decoder().items() if one.special}
    special |= set(draft.model.tokenizer.all_special_ids)
    module: Any = draft.model.module
    rows = int(module.get_input_embeddings().weight.shape[0])
    ordered = sorted(core.get_vocab().items(), key=lambda item: item[1])
    return [token for name, token in ordered if token not in special and token < rows and not _UNUSED.match(name)]


def frame_of(draft: Draft) -> tuple[list[int], list[int]]:
    """What the readout puts before and after a text, as tokens: found with texts that are one token of letters."""
    tokenizer, core = draft.model.tokenizer, bare_tokenizer(draft)
    plain = sorted(core.get_vocab().items(), key=lambda item: (len(item[0]) < 3, item[1]))
    candidates = [token for name, token in plain if name.isascii() and name.isalpha()][:400]
    frames: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for token, text in ((token, tokenizer.decode([token])) for token in candidates):
        if list(tokenizer(text, add_special_tokens=False)["input_ids"]) != [token]:
            continue
        row = draft.framed.ids([text])[0]
        if row.count(token) == 1:
            at = row.index(token)
            frames[tuple(row[:at]), tuple(row[at + 1 :])] += 1
        if frames.total() >= 50:
            break
    if not frames:
        raise ExportError(f"no token of {draft.model.name} is a text of its own: it is not known where its template begins.")
    before, after = frames.most_common(1)[0][0]
    return list(before), list(after)


def pca(vectors: np.ndarray, dimensions: int) -> tuple[np.ndarray, float]:
    """Centered rows along their largest components, and the share of the variance that these hold.

    >>> pca(np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]]), 1)[0].ravel().tolist()
    [-2.0, -1.0, 3.0]
    """
    mean = vectors.mean(0, dtype=np.float64)
    covariance = np.zeros((vectors.shape[1],) * 2)
    for start in range(0, len(vectors), 8192):
        part = vectors[start : start + 8192].astype(np.float64) - mean
        covariance += part.T @ part
    values, components = np.linalg.eigh(covariance)
    values, components = np.clip(values[::-1], 0, None), components[:, ::-1][:, :dimensions]
    parts = [(vectors[start : start + 8192] - mean) @ components for start in range(0, len(vectors), 8192)]
    scores = np.concatenate(parts)
    # a component's sign is arbitrary: its largest entry is positive, as model2vec has it
    signs = np.sign(scores[np.abs(scores).argmax(0), np.arange(scores.shape[1])])
    total = float(values.sum())
    return scores * np.where(signs == 0, 1, signs), float(values[:dimensions].sum() / total) if total else 1.0


def sif_weights(count: int, coefficient: float = SIF) -> np.ndarray:
    """Smooth inverse frequency (Arora et al. 2017), with frequencies by Zipf's law over the rank in the vocabulary."""
    share = 1 / np.arange(2, count + 2)
    return coefficient / (coefficient + share / share.sum())


def static_vectors(core: Any, arrays: Mapping[str, np.ndarray], texts: Sequence[str], max_length: int = MAX_LENGTH) -> np.ndarray:
    """What model2vec makes of texts: the mean over their tokens, scaled to length 1."""
    table, mapping = arrays["embeddings"].astype(np.float32), arrays.get("mapping")
    unknown = getattr(core.model, "unk_token", None)
    skip = core.token_to_id(unknown) if isinstance(unknown, str) else None
    out = np.zeros((len(texts), table.shape[1]), dtype=np.float32)
    for i, encoded in enumerate(core.encode_batch(list(texts), add_special_tokens=False)):
        ids = [token for token in encoded.ids[:max_length] if token != skip]
        if ids:
            out[i] = table[ids if mapping is None else mapping[ids]].mean(0)
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-32)


def _write(draft: Draft, folder: Path, core: Any, arrays: Mapping[str, np.ndarray]) -> None:
    folder.mkdir()
    save_file(dict(arrays), folder / "model.safetensors")
    atomic.write_text(folder / "tokenizer.json", core.to_str())
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "tokenizer_name": draft.model.name,
        "apply_pca": int(arrays["embeddings"].shape[1]),
        "sif_coefficient": SIF,
        "hidden_dim": int(arrays["embeddings"].shape[1]),
        "seq_length": 1_000_000,
        "max_length": MAX_LENGTH,
        "normalize": True,
        "pooling": draft.readout.pooling,
        "embedding_dtype": "float16",
    }
    atomic.write_json(folder / "config.json", config)
    modules = [("StaticEmbedding", "."), ("Normalize", "1_Normalize")]
    (folder / "1_Normalize").mkdir()
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    atomic.write_json(folder / "modules.json", listed)


def _scores(draft: Draft, core: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Static and whole, side by side: on pairs that people judged, where those are on this machine, and on the built-in texts."""
    from layerscope.evaluation.tasks.catalogue import TASKS

    def own(texts: Sequence[str]) -> np.ndarray:
        vectors = pooled_vectors(draft.model, draft.framed.ids(texts), draft.layer, draft.readout)
        return finished(vectors, draft.head, unit=True)

    texts = [text for text in draft.texts if len(text) < 3000]
    upper = np.triu_indices(len(texts), 1)
    static, whole = static_vectors(core, arrays, texts), own(texts)
    facts: dict[str, Any] = {
        "agreement": float(spearman((static @ static.T)[upper], (whole @ whole.T)[upper])),
        "agreement_texts": len(texts),
        "task": None,
    }
    if TASKS.is_cached(_TASK):
        entry = TASKS.get(_TASK)
        pairs = entry.read(entry.fetch(offline=True))["test"]
        judged = list(dict.fromkeys(text for pair in pairs for text in (pair["sentence1"], pair["sentence2"])))
        at = {text: i for i, text in enumerate(judged)}
        gold = [pair["score"] for pair in pairs]
        first, second = ([at[pair[name]] for pair in pairs] for name in ("sentence1", "sentence2"))
        for name, vectors in (("static", static_vectors(core, arrays, judged)), ("whole", own(judged))):
            facts[name] = 100 * float(spearman((vectors[first] * vectors[second]).sum(1), gold))
        facts |= {"task": _TASK, "pairs": len(pairs)}
    return facts


class Model2VecFormat(ExportFormat):
    """`model2vec/`: a table of token vectors; no transformer runs."""

    name: ClassVar[str] = FOLDER
    summary: ClassVar[str] = "a static model (a vector per token) that model2vec opens"

    def write(self, draft: Draft, options: Mapping[str, Any]) -> dict[str, Any]:
        """The folder, and what was measured of it."""
        return write_static(draft)

    def card(self, facts: Any) -> str:
        """How it was made and what it scores."""
        lines = [
            "## model2vec",
            "",
            f'`{FOLDER}/` is a static model: `StaticModel.from_pretrained("path/to/this/folder/{FOLDER}")`.',
            f"Each of {facts['tokens']:,} tokens was read alone at this layer under this readout; the vectors were reduced to",
            f"{facts['dimensions']} dimensions by PCA ({100 * facts['pca_explained']:.0f} % of the variance) and weighted by SIF",
            f"under Zipf's law ({facts['sif']}). {describe_size(facts['bytes'])}. Its vectors are not those of the model above:",
            "",
            "| measured | static | the model at this layer |",
            "| --- | --- | --- |",
        ]
        if facts["task"]:
            what = f"{facts['task']}: Spearman × 100 of cosines with people's judgments, {facts['pairs']:,} pairs"
            lines.append(f"| {what} | {facts['static']:.1f} | {facts['whole']:.1f} |")
        lines.append(
            f"| agreement of the cosines of {facts['agreement_texts']} texts (Spearman) | {facts['agreement']:.2f} | 1 |"
        )
        return "\n".join(lines)

    def lines(self, facts: Any) -> list[str]:
        """One line."""
        scored = (
            f" · {facts['task']} {facts['static']:.1f}, the model {facts['whole']:.1f}"
            if facts["task"]
            else f" · {_TASK} is not on this machine: no score"
        )
        return [
            f"{FOLDER}: {facts['tokens']:,} tokens × {facts['dimensions']}, {describe_size(facts['bytes'])}{scored} · agreement "
            f"with the model's cosines {facts['agreement']:.2f}"
        ]


FORMAT = Model2VecFormat()
