"""A recipe's file: which studies, on which models and texts."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.studies.base import get_study

_DEFAULTS: dict[str, Any] = {
    "data": "lee", "limit": None, "column": None, "max_length": 256, "final_norm": "raw", "dtype": "float32", "seed": 0,
}  # fmt: skip
_STEP = {"name", "about", "study", "models", "options", *_DEFAULTS}
_FACTS = {"parameters", "blocks", "width", "bytes"}


@dataclass(frozen=True)
class Step:
    """One study of a recipe, complete."""

    name: str
    study: str
    models: list[str]
    options: dict[str, Any]
    settings: dict[str, Any]
    about: str = ""


@dataclass(frozen=True)
class Recipe:
    """A file's content. `facts` are what is known of models without their files."""

    name: str
    about: str
    steps: list[Step]
    facts: dict[str, dict[str, int]] = field(default_factory=dict)


def shipped() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("layerscope.studies.recipes")
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_recipe(spec: str | Path) -> Recipe:
    """A recipe of the package by name, or a file; paths of models in a file are taken from where the command runs."""
    import yaml

    if str(spec) in shipped():
        text = resources.files("layerscope.studies.recipes").joinpath(f"{spec}.yaml").read_text(encoding="utf-8")
    else:
        path = Path(spec).expanduser()
        if not path.is_file():
            if path.suffix in (".yaml", ".yml") or path.name != str(spec):
                raise LayerscopeError(
                    f"there is no file {str(spec)!r}. Recipes that come with layerscope: {', '.join(shipped())}."
                )
            raise UnknownNameError("recipe", str(spec), shipped(), "A recipe can also be a .yaml file.")
        text = path.read_text(encoding="utf-8")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise LayerscopeError(f"{spec} is not readable YAML: {' '.join(str(error).split())}.") from None
    return parse_recipe(content, str(spec))


def parse_recipe(content: Any, where: str) -> Recipe:
    """A checked recipe from plain values."""
    if not isinstance(content, dict) or not isinstance(content.get("steps"), list) or not content["steps"]:
        raise LayerscopeError(f"{where}: a recipe has a list of `steps`, each with a `study`.")
    _known(content, {"name", "about", "defaults", "models", "steps"}, where)
    defaults = content.get("defaults") or {}
    _known(defaults, set(_DEFAULTS), f"{where}: defaults")
    facts = content.get("models") or {}
    for model, held in facts.items():
        _known(held, _FACTS, f"{where}: models: {model}")
    steps: list[Step] = []
    for i, raw in enumerate(content["steps"]):
        steps.append(_step(raw, {**_DEFAULTS, **defaults}, f"{where}: step {i + 1}", {step.name for step in steps}))
    return Recipe(str(content.get("name") or Path(where).stem), str(content.get("about") or ""), steps, facts)


def _step(raw: Any, settings: dict[str, Any], where: str, taken: set[str]) -> Step:
    if not isinstance(raw, dict) or "study" not in raw:
        raise LayerscopeError(f"{where} names no `study`.")
    _known(raw, _STEP, where)
    study = get_study(str(raw["study"]))
    models = [str(model) for model in raw.get("models") or []]
    study.check_models(len(models))
    study.fill(raw.get("options") or {})
    name = str(raw.get("name") or study.name)
    if name in taken or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise LayerscopeError(f"{where}: the name {name!r} is taken, or is no name for a folder. Give each step a plain `name`.")
    own = {key: raw[key] for key in _DEFAULTS if key in raw}
    return Step(name, study.name, models, dict(raw.get("options") or {}), {**settings, **own}, str(raw.get("about") or ""))


def _known(given: Any, valid: set[str], where: str) -> None:
    if not isinstance(given, dict):
        raise LayerscopeError(f"{where} must be names and values, not {given!r}.")
    for key in given:
        if key not in valid:
            near = difflib.get_close_matches(str(key), valid, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise LayerscopeError(f"{where}: unknown key {key!r}.{hint} Valid: {', '.join(sorted(valid))}.")
