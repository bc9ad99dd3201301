"""Every study by name, found by looking into this folder, so that adding a study is adding a file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from layerscope.errors import UnknownNameError
from layerscope.studies.base import Study

_HOME = "layerscope.studies"


@cache
def studies() -> dict[str, Study]:
    """Every study by name: the `STUDY` of each module in this folder."""
    found = {}
    for info in pkgutil.iter_modules(importlib.import_module(_HOME).__path__):
        study = getattr(importlib.import_module(f"{_HOME}.{info.name}"), "STUDY", None)
        if isinstance(study, Study):
            found[study.name] = study
    return found


def get_study(name: str) -> Study:
    """The study called `name`."""
    known = studies()
    if name not in known:
        raise UnknownNameError("study", name, known)
    return known[name]
