"""A process that makes views (see `augment_pool`): one JSON request per line in; an answer for each, in the same order.

Answers are the views of each text as a line of JSON; or, after a request that names a tokenizer, a line with the number of
tokens of each view, followed by the token ids of all of them as 32-bit integers.
"""

from __future__ import annotations

import json
import sys
from array import array
from typing import Any, BinaryIO

from layerscope.data.augment import views


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests `{"texts": […], "views": n, "seed": s}` until there are no more."""
    tokenizer = None
    for line in requests:
        request = json.loads(line)
        if "tokenizer" in request:
            tokenizer = open_tokenizer(request["tokenizer"], request["max_length"])
            continue
        made = [views(text, request["views"], request["seed"]) for text in request["texts"]]
        if tokenizer is None:
            answers.write(json.dumps(made).encode() + b"\n")
        else:
            ids = token_ids(tokenizer, [view for some in made for view in some])
            answers.write(json.dumps([len(row) for row in ids]).encode() + b"\n")
            answers.write(array("i", [token for row in ids for token in row]).tobytes())
        answers.flush()


def open_tokenizer(serialised: str, max_length: int | None) -> Any:
    """A fast tokenizer that cuts from the right."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(serialised)
    tokenizer.no_padding()
    if max_length is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(max_length)
    return tokenizer


def token_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids of texts with the special tokens the tokenizer adds."""
    # without offsets, which nobody reads, where the tokenizer can leave them out
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return [encoding.ids for encoding in encode(texts)]


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
