"""A process that makes views: one JSON request per line in, one JSON answer per line out (see `augment_pool`)."""

from __future__ import annotations

import json
import sys
from typing import TextIO

from layerscope.data.augment import views


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests `{"texts": […], "views": n, "seed": s}` with the views of each text, until there are no more."""
    for line in requests:
        request = json.loads(line)
        made = [views(text, request["views"], request["seed"]) for text in request["texts"]]
        answers.write(json.dumps(made) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
