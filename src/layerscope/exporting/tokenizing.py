"""The tokenizer of an exported folder: padding and length set, and a template built in where the
readout has one.

An evaluation tokenizes the whole filled template, so that words may join at its edges (a full stop
and a closing quote are one token in many vocabularies). The prefix is therefore put before the text
by the tokenizer's normalizer, as characters. Of the suffix, as little as is needed to get the joins
right is added as characters as well; the rest is added as tokens by the post-processor, where
truncation counts it and never cuts it.
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
"""What layerscope gives a model: token types are left to their default, which is 0."""


@dataclass(frozen=True)
class FramedTokenizer:
    """A tokenizer for export. `exact_when_cut`: texts too long for `max_length` are cut where the
    evaluation cuts them."""

    tokenizer: Any
    max_length: int
    joined: str = ""
    appended: str = ""
    exact_when_cut: bool = True

    def longer(self, length: int) -> FramedTokenizer:
        """The same tokenizer, cutting texts later."""
        _set_length(self.tokenizer, length)
        return replace(self, max_length=length)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids as `encode` will make them."""
        encoded = self.tokenizer(
            list(texts), truncation="longest_first", max_length=self.max_length
        )
        return [list(row) for row in encoded["input_ids"]]


def frame_tokenizer(
    model: LoadedModel, template: Template, max_length: int, texts: Sequence[str]
) -> FramedTokenizer:
    """The tokenizer that makes plain `encode(text)` do what the template says; checked on `texts`,
    which must tokenize alike."""
    if template.pattern == SLOT:
        framed = FramedTokenizer(settled_tokenizer(model, max_length), max_length)
        wrong = _differing(framed, model, template, texts, max_length)
        if wrong:
            raise ExportError(
                f"the tokenizer of {model.name} does not tokenize {wrong[0][:60]!r} again as it was captured."
            )
        return framed
    if not getattr(model.tokenizer, "is_fast", False):
        raise ExportError(
            f"{model.name} has no fast tokenizer, and only those can hold a template. Use a `plain` readout."
        )
    return _with_template(model, template, max_length, texts)


def settled_tokenizer(model: LoadedModel, max_length: int) -> Any:
    """A copy of the model's tokenizer that pads and cuts as an exported folder does."""
    tokenizer = copy.deepcopy(model.tokenizer)
    _settle(tokenizer, model, max_length)
    return tokenizer


def _with_template(
    model: LoadedModel, template: Template, max_length: int, texts: Sequence[str]
) -> FramedTokenizer:
    prefix, suffix = template.pattern.split(SLOT)
    added = model.tokenizer.get_added_vocab()
    special = [token for token in added if token in prefix]
    if special:
        raise ExportError(
            f"template {template.name!r} has the special token {special[0]!r} before the text, where words are added as "
            "characters and special tokens are not known. Use a template without it before {text}."
        )
    fits = [
        text
        for text, e in zip(texts, tokenize_texts(model, template, texts, max_length), strict=True)
        if text and not e.truncated
    ]
    wrong: list[str] = []
    for cut in range(len(suffix) + 1):
        if any(token in suffix[:cut] for token in added):
            break
        tokenizer = _assemble(model, prefix, suffix[:cut], suffix[cut:], max_length)
        framed = FramedTokenizer(tokenizer, max_length, suffix[:cut], suffix[cut:])
        wrong = _differing(framed, model, template, fits, max_length)
        if not wrong:
            return _length(framed, model, template, max_length, texts)
    shown = f" (for example {wrong[0][:60]!r})" if wrong else ""
    raise ExportError(
        f"template {template.name!r} cannot be built into the tokenizer of {model.name}: texts would be tokenized otherwise than "
        f"the evaluation did{shown}. Use a `plain` readout."
    )


def _length(
    framed: FramedTokenizer,
    model: LoadedModel,
    template: Template,
    max_length: int,
    texts: Sequence[str],
) -> FramedTokenizer:
    """The length at which long texts are cut as the evaluation cut them, where there is one."""
    for length in (max_length, max_length - 1):
        _set_length(framed.tokenizer, length)
        tried = FramedTokenizer(framed.tokenizer, length, framed.joined, framed.appended)
        if not _differing(tried, model, template, [text for text in texts if text], max_length):
            return tried
    _set_length(framed.tokenizer, max_length)
    return FramedTokenizer(
        framed.tokenizer, max_length, framed.joined, framed.appended, exact_when_cut=False
    )


def _differing(
    framed: FramedTokenizer,
    model: LoadedModel,
    template: Template,
    texts: Sequence[str],
    max_length: int,
) -> list[str]:
    """Texts whose token ids are not those of the evaluation."""
    wanted = tokenize_texts(model, template, texts, max_length)
    return (
        [
            text
            for text, row, e in zip(texts, framed.ids(texts), wanted, strict=True)
            if row != e.ids
        ]
        if texts
        else []
    )


def _assemble(model: LoadedModel, prefix: str, joined: str, appended: str, max_length: int) -> Any:
    """A fast tokenizer with the prefix and the joined part of the suffix as characters, the rest as
    tokens."""
    from tokenizers import Regex, Tokenizer, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    old = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    old.no_truncation()
    old.no_padding()
    new = Tokenizer.from_str(old.to_str())
    steps: list[Any] = [normalizers.Prepend(prefix)] if prefix else []
    if joined:
        steps.append(normalizers.Replace(Regex(r"\z"), joined))
    if old.normalizer is not None:
        steps.append(old.normalizer)
    if steps:
        new.normalizer = normalizers.Sequence(steps)
    before, after = special_tokens(old)
    tail = old.encode("x" + appended, add_special_tokens=False).ids[
        len(old.encode("x", add_special_tokens=False).ids) :
    ]
    # a piece may stand for several tokens, whatever characters they hold
    pieces = {"BEFORE": before, "$A": None, "SUFFIX": tail, "AFTER": after}
    known = [
        {"id": name, "ids": ids, "tokens": [old.id_to_token(i) for i in ids]}
        for name, ids in pieces.items()
        if ids
    ]
    single = " ".join(name for name, ids in pieces.items() if ids or ids is None)
    new.post_processor = processors.TemplateProcessing(single=single, special_tokens=known)
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")
    given = {name: getattr(model.tokenizer, name, None) for name in names}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=new, **{name: str(token) for name, token in given.items() if token}
    )
    _settle(tokenizer, model, max_length)
    return tokenizer


def special_tokens(core: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and after a text."""
    bare, whole = core.encode("x", add_special_tokens=False).ids, core.encode("x").ids
    start = next(i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare)
    return whole[:start], whole[start + len(bare) :]


def _settle(tokenizer: Any, model: LoadedModel, max_length: int) -> None:
    """Pad and cut on the right, which is exact for every family, with the padding the model
    expects."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    tokenizer.model_input_names = list(INPUTS)
    tokenizer.init_kwargs.update(
        padding_side="right", truncation_side="right", model_input_names=list(INPUTS)
    )
    for leftover in ("name_or_path", "is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(leftover, None)
    tokenizer.chat_template = None  # the model embeds texts; it does not chat
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.pad_id)
    _set_length(tokenizer, max_length)


def _set_length(tokenizer: Any, length: int) -> None:
    tokenizer.model_max_length = length
    tokenizer.init_kwargs["model_max_length"] = length
