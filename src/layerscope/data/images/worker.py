"""A process that decodes images: pickled requests in, pickled answers out (see `workers`). Its parent alone talks to it."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from layerscope.data.images.messages import receive, send
from layerscope.data.images.work import answer


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more. The first value is the processor."""
    try:
        processor = receive(requests)
        while True:
            request = receive(requests)
            try:
                send(answers, (True, answer(request, processor)))
            except Exception as error:
                send(answers, (False, f"{type(error).__name__}: {error}"))
    except EOFError:
        return


if __name__ == "__main__":
    # What a library prints must not end up among the answers.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, pipe)
