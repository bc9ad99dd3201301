"""The request for an export, the written folder before it is verified, and its tokenizer.

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
from pathlib import Path
from typing import Any

from layerscope.core.files import read_json
from layerscope.core.heads import Head
from layerscope.core.readout import Readout
from layerscope.core.templates import POOLINGS, SLOT, Template, get_template
from layerscope.errors import ExportError
from layerscope.exporting.cutting import Route
from layerscope.models import LoadedModel
from layerscope.vectors.encoder import tokenize_texts

__all__ = ["special_tokens"]

DEFAULT_MAX_LENGTH = 256
INPUTS = ["input_ids", "attention_mask"]
"""The inputs that layerscope gives a model: token types keep their default, which is 0."""
_TEXTS = read_json(Path(__file__).with_name("verification_texts.json"))
SHORT: list[str] = _TEXTS["short"]
"""Texts with the endings and beginnings on which tokenizers differ."""
LONG: list[str] = _TEXTS["long"]


def verification_texts(brief: bool = False) -> list[str]:
    """Return the built-in texts; with `brief`, every second of the short ones.

    Long texts take most of the time.
    """
    return list(SHORT[::2]) if brief else [*SHORT, *LONG]


def text_longer_than(count: int) -> str:
    """Return a text of more than `count` tokens."""
    return LONG[0] * (count // 60 + 2)


def why_not(readout: Readout) -> str | None:
    """Return why a readout needs custom code, or None if standard modules express it.

    >>> why_not(Readout("one-word", "last", "raw")) is None
    True
    """
    template = get_template(readout.template)
    if template.copies > 1:
        return f"a tokenizer cannot repeat the text {template.copies} times"
    if readout.sink == "drop":
        return "no standard pooling leaves out the token with the largest norm"
    if POOLINGS.get(readout.pooling).sentence_transformers is None:
        return f"{readout.pooling!r} is not among the standard poolings"
    return None


def nearest(readout: Readout) -> Readout:
    """Return the expressible readout that differs least.

    >>> nearest(Readout("echo", "mean", "raw", "drop", "corpus")).name
    'plain/mean/raw/keep/corpus'
    """
    template = readout.template if get_template(readout.template).copies == 1 else "plain"
    poolings = get_template(template).poolings
    standard = [name for name in poolings if POOLINGS.get(name).sentence_transformers]
    pooling = readout.pooling if readout.pooling in standard else standard[0]
    return replace(readout, template=template, pooling=pooling, sink="keep")


def check_expressible(readout: Readout) -> None:
    """Raise for a readout that needs custom code, and name the nearest that does not."""
    reason = why_not(readout)
    if reason is not None:
        raise ExportError(
            f"readout {readout.name!r} cannot be exported without custom code: {reason}. "
            f"The nearest that can: readout='{nearest(readout).name}'"
        )


@dataclass(frozen=True)
class Side:
    """A side of a search, `query` or `document`: its template and the head of its vectors.

    sentence-transformers puts a prompt before a text and nothing after it. So the words before the
    text are the side's prompt. The words after it are in the tokenizer, the same for both sides.
    """

    name: str
    template: str
    head: Head | None = None

    @property
    def prompt(self) -> str:
        """The words before a text."""
        return get_template(self.template).pattern.split(SLOT)[0]


@dataclass(frozen=True)
class ExportRequest:
    """A layer of a model and its readout, with what stands beside them in the folder.

    - `texts`: the texts to verify on.
    - `max_length`: the tokens to which texts are cut. With `longer`, a folder whose template would
      be cut may read longer texts.
    - `unit`: vectors are scaled to length 1.
    - `head`: what is applied to pooled vectors. `center_on`: the texts whose mean is subtracted
      instead, and words for them.
    - `sides`: how queries and documents are read, if that differs. Their templates end alike.
    - `reason`, `evidence`: how the choice was made, for the card and layerscope.json.
    """

    model: LoadedModel
    layer: int
    readout: Readout
    texts: tuple[str, ...]
    max_length: int = DEFAULT_MAX_LENGTH
    longer: bool = False
    unit: bool = False
    head: Head | None = None
    center_on: tuple[list[str], str] | None = None
    sides: tuple[Side, ...] = ()
    license: str = ""
    reason: str = ""
    evidence: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Draft(ExportRequest):
    """A request that was written to a folder, which is not verified yet.

    One with `sides` is verified for each of them in turn; `side` is then the one at hand.
    """

    folder: Path
    route: Route
    framed: FramedTokenizer
    side: Side | None = None

    @property
    def template(self) -> Template:
        """The readout's template."""
        return get_template(self.readout.template)

    def by_side(self) -> list[Draft]:
        """Return the draft as each side reads it, or the draft itself if it has no sides."""
        drafts = []
        for side in self.sides:
            readout = replace(self.readout, template=side.template)
            drafts.append(replace(self, side=side, readout=readout, head=side.head))
        return drafts or [self]

    def ids(self) -> list[list[int]]:
        """Return the token ids of the texts, as `encode` will make them."""
        prompt = "" if self.side is None else self.side.prompt
        return self.framed.ids([prompt + text for text in self.texts])


@dataclass(frozen=True)
class FramedTokenizer:
    """A tokenizer for export, with the two parts of the template's suffix.

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
    expected = dict(
        zip(texts, tokenize_texts(model, template, list(texts), max_length), strict=True)
    )

    def differing(framed: FramedTokenizer, compared: Sequence[str]) -> list[str]:
        rows = zip(compared, framed.ids(compared), strict=True)
        return [text for text, ids in rows if ids != expected[text].ids]

    wrong: list[str] = []
    if template.pattern == SLOT:
        framed = _settled(copy.deepcopy(model.tokenizer), model, max_length)
        wrong = differing(framed, texts)
        if not wrong:
            return framed
    else:
        prefix, suffix = template.pattern.split(SLOT)
        added = model.tokenizer.get_added_vocab()
        _check_frame(model, template, [token for token in added if token in prefix])
        texts = [text for text in texts if text]
        whole = [text for text in texts if not expected[text].truncated]
        for length in range(len(suffix) + 1):
            joined = suffix[:length]
            if any(token in joined for token in added):
                break
            tokenizer = _with_template(model, prefix, joined, suffix[length:])
            framed = _settled(tokenizer, model, max_length)
            framed = replace(framed, joined=joined, appended=suffix[length:])
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
        f"would be tokenized otherwise than the evaluation did{example}. Use another template."
    )


def _check_frame(model: LoadedModel, template: Template, special: Sequence[str]) -> None:
    """Raise for a tokenizer that holds no template, or special tokens before the text."""
    if not getattr(model.tokenizer, "is_fast", False):
        raise ExportError(
            f"{model.name} has no fast tokenizer, and only those can hold a template. Use a "
            "`plain` readout."
        )
    if special:
        raise ExportError(
            f"template {template.name!r} has the special token {special[0]!r} before the text, "
            "where a tokenizer adds characters only. Use a template without it."
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
