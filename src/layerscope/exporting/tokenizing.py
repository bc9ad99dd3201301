"""The tokenizer of an exported folder: padding and length, and a template built in.

An evaluation tokenizes the whole filled template, so words may join at its edges: a full stop and a
closing quote are one token in many vocabularies. The prefix is therefore put before the text by the
tokenizer's normalizer, as characters. Of the suffix, as little as the joins need is added as
characters as well. The rest is added as tokens by the post-processor, where truncation counts it
and never cuts it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerscope.core.templates import SLOT, Template
from layerscope.errors import ExportError
from layerscope.models import LoadedModel
from layerscope.vectors.tokenize import tokenize_texts

__all__ = ["special_tokens"]

INPUTS = ["input_ids", "attention_mask"]
"""The inputs that layerscope gives a model: token types keep their default, which is 0."""


@dataclass(frozen=True)
class FramedTokenizer:
    """A tokenizer for export, with the parts of the template's suffix.

    `exact_when_cut`: texts too long for `max_length` are cut where the evaluation cuts them.
    """

    tokenizer: Any
    max_length: int
    joined: str = ""
    appended: str = ""
    exact_when_cut: bool = True

    def with_length(self, length: int) -> FramedTokenizer:
        """Return the same tokenizer with another maximum length."""
        self.tokenizer.model_max_length = length
        self.tokenizer.init_kwargs["model_max_length"] = length
        return replace(self, max_length=length)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return token ids as `encode` will make them."""
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts), truncation="longest_first", max_length=self.max_length
        )
        return [list(row) for row in encoded["input_ids"]]


def frame_tokenizer(
    model: LoadedModel, template: Template, max_length: int, texts: Sequence[str]
) -> FramedTokenizer:
    """Return a tokenizer that makes plain `encode(text)` do what the template says.

    `texts` must be tokenized as the evaluation does.
    """

    def differing(framed: FramedTokenizer, compared: Sequence[str]) -> list[str]:
        expected = tokenize_texts(model, template, compared, max_length)
        rows = zip(compared, framed.ids(compared), expected, strict=True)
        return [text for text, ids, tokenized in rows if ids != tokenized.ids]

    if template.pattern == SLOT:
        framed = _settled(copy.deepcopy(model.tokenizer), model, max_length)
        if wrong := differing(framed, texts):
            raise ExportError(
                f"the tokenizer of {model.name} does not tokenize {wrong[0][:60]!r} again as it "
                "was captured."
            )
        return framed
    if not getattr(model.tokenizer, "is_fast", False):
        raise ExportError(
            f"{model.name} has no fast tokenizer, and only those can hold a template. Use a "
            "`plain` readout."
        )
    prefix, suffix = template.pattern.split(SLOT)
    added = model.tokenizer.get_added_vocab()
    for token in added:
        if token in prefix:
            raise ExportError(
                f"template {template.name!r} has the special token {token!r} before the text, "
                "where words are added as characters and special tokens are not known. Use a "
                "template without it before {text}."
            )
    texts = [text for text in texts if text]
    tokenized = zip(texts, tokenize_texts(model, template, texts, max_length), strict=True)
    whole = [text for text, tokens in tokenized if not tokens.truncated]
    wrong = []
    for length in range(len(suffix) + 1):
        joined = suffix[:length]
        appended = suffix[length:]
        if any(token in joined for token in added):
            break
        tokenizer = _with_template(model, prefix, joined, appended)
        framed = replace(_settled(tokenizer, model, max_length), joined=joined, appended=appended)
        wrong = differing(framed, whole)
        if not wrong:
            # Long texts are cut as the evaluation cuts them at this length or at one less.
            for cut_length in (max_length, max_length - 1):
                exact = framed.with_length(cut_length)
                if not differing(exact, texts):
                    return exact
            return replace(framed.with_length(max_length), exact_when_cut=False)
    example = f" (for example {wrong[0][:60]!r})" if wrong else ""
    raise ExportError(
        f"template {template.name!r} cannot be built into the tokenizer of {model.name}: texts "
        f"would be tokenized otherwise than the evaluation did{example}. Use a `plain` readout."
    )


def _with_template(model: LoadedModel, prefix: str, joined: str, appended: str) -> Any:
    """Return a fast tokenizer that adds the prefix and `joined` as characters, `appended` as
    tokens."""
    from tokenizers import Regex, Tokenizer, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    framed = Tokenizer.from_str(plain.to_str())
    steps: list[Any] = [normalizers.Prepend(prefix)] if prefix else []
    if joined:
        steps.append(normalizers.Replace(Regex(r"\z"), joined))
    if plain.normalizer is not None:
        steps.append(plain.normalizer)
    if steps:
        framed.normalizer = normalizers.Sequence(steps)
    before, after = special_tokens(plain)
    start = len(plain.encode("x", add_special_tokens=False).ids)
    tail = plain.encode("x" + appended, add_special_tokens=False).ids[start:]
    # A piece may stand for several tokens, whatever characters they hold.
    pieces = {"BEFORE": before, "SUFFIX": tail, "AFTER": after}
    order = [name for name in ("BEFORE", "$A", "SUFFIX", "AFTER") if pieces.get(name, name)]
    framed.post_processor = processors.TemplateProcessing(
        single=" ".join(order),
        special_tokens=[
            {"id": name, "ids": ids, "tokens": [plain.id_to_token(i) for i in ids]}
            for name, ids in pieces.items()
            if ids
        ],
    )
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")
    tokens = {name: getattr(model.tokenizer, name, None) for name in names}
    special = {name: str(token) for name, token in tokens.items() if token}
    return PreTrainedTokenizerFast(tokenizer_object=framed, **special)


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer puts before and after a text."""
    bare = tokenizer.encode("x", add_special_tokens=False).ids
    whole = tokenizer.encode("x").ids
    starts = range(len(whole) - len(bare) + 1)
    start = next(i for i in starts if whole[i : i + len(bare)] == bare)
    return whole[:start], whole[start + len(bare) :]


def _settled(tokenizer: Any, model: LoadedModel, max_length: int) -> FramedTokenizer:
    """Make a tokenizer pad and cut on the right, which is exact for every family."""
    settings = {
        "padding_side": "right",
        "truncation_side": "right",
        "model_input_names": list(INPUTS),
    }
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    tokenizer.init_kwargs.update(settings)
    for name in ("name_or_path", "is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.chat_template = None  # the model embeds texts; it does not chat
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.pad_id)
    return FramedTokenizer(tokenizer, max_length).with_length(max_length)
