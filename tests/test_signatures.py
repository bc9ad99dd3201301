"""What a user sees of a public function: real defaults, not the names of constants."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import layerscope

HOME = Path(layerscope.__file__).parent


def test_public_functions_show_their_defaults() -> None:
    found = []
    for module, names in layerscope._HOMES.items():
        for name in names:
            thing = getattr(importlib.import_module(f"layerscope.{module}"), name)
            if not inspect.isfunction(thing):
                continue
            tree = ast.parse(inspect.getsource(thing))
            arguments = tree.body[0].args  # type: ignore[attr-defined]
            for default in (
                *arguments.defaults,
                *(one for one in arguments.kw_defaults if one is not None),
            ):
                found += [
                    f"{name}: {part.id}"
                    for part in ast.walk(default)
                    if isinstance(part, ast.Name) and part.id.isupper()
                ]
    assert found == []
