"""A plan: the YAML file of a sweep or a recipe, checked, as a list of steps.

A plan has a grid, steps, or both. The grid (`models`, `corpora`, `profile`, `evaluate`, `probe`)
profiles every model on every corpus, and evaluates or probes every model if `evaluate` or `probe`
is there. Each of `steps` is a study, a profile, an evaluation or a probe, with its models and
texts. Mistakes are reported before anything runs; the message names the place, the
value and the valid values.
"""

from __future__ import annotations

import glob
import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from layerscope.core.files import exists
from layerscope.core.runs import is_reserved, on_disk
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.evaluation.job import evaluate
from layerscope.metrics import Options
from layerscope.models import load
from layerscope.probing import probe
from layerscope.profiling import profile
from layerscope_paper.presets import get_preset
from layerscope_paper.studies.base import STUDIES
from layerscope_paper.studies.shared.models import Spec, read_spec, read_specs
from layerscope_paper.sweeps.steps import PlannedCorpus, Step

_TOP = (
    "name",
    "about",
    "defaults",
    "models",
    "corpora",
    "profile",
    "evaluate",
    "probe",
    "steps",
)
_MODEL = ("name", "revisions", "checkpoints")
_CORPUS = ("data", "column", "limit", "name")
_DEFAULTS: dict[str, Any] = {
    "data": "lee",
    "limit": None,
    "column": None,
    "max_length": 256,
    "final_norm": None,
    "dtype": None,
    "seed": 0,
}
_STEP = ("name", "about", "study", "profile", "evaluate", "probe", "models", "options", *_DEFAULTS)
_RUNS: dict[str, Any] = {"profile": profile, "evaluate": evaluate, "probe": probe}
_RECIPES = "layerscope_paper.sweeps.recipes"
_MAX_NAME = 120
# files of the sweep and of killed runs: a step's folder must not have such a name
_RESERVED_ENDINGS = (".json", ".parquet", ".csv", ".lock", ".part", ".old")
# parameters that a sweep sets itself
_SET_BY_SWEEP = {"model", "tokenizer", "out", "overwrite", "progress", "engine", "address"}


class PlanError(LayerscopeError):
    """A mistake in a plan."""


@dataclass(frozen=True)
class SweepPlan:
    """A checked plan. `corpora` are those of the grid."""

    name: str
    about: str
    steps: list[Step]
    corpora: list[PlannedCorpus] = field(default_factory=list)

    def only(self, names: Iterable[str] | None) -> SweepPlan:
        """Return the plan with some of its steps, by name; with all without names."""
        selected = list(names or ())
        valid = [step.name for step in self.steps]
        for name in selected:
            if name not in valid:
                raise UnknownNameError(f"step of {self.name}", name, valid)
        if not selected:
            return self
        return replace(self, steps=[step for step in self.steps if step.name in selected])

    def set(self, **settings: Any) -> SweepPlan:
        """Return the plan with settings of the command that runs it (see `Step`)."""
        return replace(self, steps=[replace(step, **settings) for step in self.steps])


def recipes() -> list[str]:
    """Return the names of the plans that come with the package."""
    return sorted(
        item.name.removesuffix(".yaml")
        for item in resources.files(_RECIPES).iterdir()
        if item.name.endswith(".yaml")
    )


def read_plan(source: str | Path | Mapping[str, Any]) -> SweepPlan:
    """Return a checked plan from a YAML file, a recipe of the package by name, or a mapping of the
    same shape.

    A path in a file is relative to the file, or else to the folder where the command runs.
    """
    if isinstance(source, Mapping):
        return _plan(dict(source), Path(), "sweep")
    import yaml

    path = Path(source).expanduser()
    if str(source) in recipes():
        text = resources.files(_RECIPES).joinpath(f"{source}.yaml").read_text(encoding="utf-8")
        base = Path()
    elif path.is_file():
        text = _read_text(path)
        base = path.parent
    elif path.suffix or path.name != str(source):
        raise PlanError(
            f"there is no file {str(source)!r}. Give a YAML file (docs/sweeps.md shows one), or "
            f"{', '.join(recipes())}."
        )
    else:
        raise UnknownNameError("recipe", str(source), recipes(), "A .yaml file can be given too.")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PlanError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply; an impossible date or number
        raise PlanError(
            f"{source} is not a plan: {str(error) or 'it is nested too deeply'}."
        ) from error
    try:
        content = _expect(content, dict, "the file", "a mapping with the key `models` or `steps`")
        return _plan(content, base, path.stem)
    except LayerscopeError as error:
        raise PlanError(f"{source}: {error}") from None


def _read_text(path: Path) -> str:
    """Return the text of a plan's file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{path} is not UTF-8 (byte {error.start}). Convert it: iconv -f LATIN1 -t UTF-8."
        ) from error


def _plan(content: dict[str, Any], base: Path, name: str) -> SweepPlan:
    _check_keys(content, _TOP, "the plan")
    has_models = content.get("models") is not None
    if not has_models and "steps" not in content:
        raise PlanError(
            "`models` is missing: a list of catalogue names, hub ids or folders. (Or give a list "
            "of `steps`.)"
        )
    corpora, steps = _grid(content, base) if has_models else ([], [])
    defaults = {**_DEFAULTS, **_settings(content.get("defaults"), "defaults", list(_DEFAULTS))}
    for i, raw in enumerate(_entries(content["steps"], "steps") if "steps" in content else []):
        names = {step.name for step in steps}
        steps += _steps(raw, defaults, f"steps[{i}]", base, names)
    about = str(content.get("about") or "")
    return SweepPlan(str(content.get("name") or name), about, steps, corpora)


def _grid(content: dict[str, Any], base: Path) -> tuple[list[PlannedCorpus], list[Step]]:
    """Return every model on every corpus, then on tasks and probes. The steps of a model follow
    each other, because its files are then cached."""
    models = _models(_entries(content["models"], "models"), "models", base)
    settings = {kind: _run_settings(content[kind], kind, kind) for kind in _RUNS if kind in content}
    if "data" in settings.get("profile", {}):
        raise PlanError(
            "profile has `data`: name what all models read under `corpora`, or give the profile "
            "under `steps`."
        )
    # without any corpora `lee`, unless the plan evaluates or probes and does not mention profiles
    default = ["lee"] if "profile" in settings or not settings else []
    entries = content.get("corpora", default)
    corpora = [
        _corpus(entry, f"corpora[{i}]", base)
        for i, entry in enumerate(_entries(entries, "corpora") if entries else [])
    ]
    steps: list[Step] = []
    names: set[str] = set()
    for spec in models:
        for corpus in corpora:
            name = _unique(f"{spec.label}--{corpus.label}", names)
            steps.append(Step("profile", name, (spec,), corpus, settings.get("profile", {})))
        for kind, suffix in (("evaluate", "tasks"), ("probe", "probe")):
            if kind in settings:
                name = _unique(f"{spec.label}--{suffix}", names)
                steps.append(Step(kind, name, (spec,), None, settings[kind]))
    return corpora, steps


def _models(entries: list[Any], where: str, base: Path) -> list[Spec]:
    specs = []
    for i, entry in enumerate(entries):
        specs += _model(entry, f"{where}[{i}]", base)
    return specs


def _model(entry: Any, where: str, base: Path) -> list[Spec]:
    """Return the models of one entry: one, or one for each revision or checkpoint."""
    if isinstance(entry, str):
        return [_spec(entry, base)]
    _expect(entry, dict, where, "a name, or a mapping with the key `name`")
    valid = _parameters(load, {"spec", "revision"})
    _check_keys(entry, [*_MODEL, *valid], where)
    if "name" not in entry and "checkpoints" not in entry:
        raise PlanError(
            f"{where} needs a `name` (catalogue name, hub id or folder), or `checkpoints` "
            "(folders)."
        )
    options = {key: value for key, value in entry.items() if key in valid}
    if "adapters" in options:
        options["adapters"] = tuple(options["adapters"])
    if "checkpoints" in entry:
        if "revisions" in entry or "name" in entry:
            raise PlanError(
                f"{where} has `checkpoints`, which are folders: `name` and `revisions` go with hub "
                "models."
            )
        patterns = _names(entry["checkpoints"], f"{where}.checkpoints")
        return [
            Spec(path, Path(path).name, options)
            for pattern in patterns
            for path in _matches(pattern, base, where)
        ]
    spec = _spec(str(_expect(entry["name"], str, f"{where}.name", "a model's name")), base)
    options = {**spec.options, **options}
    if "revisions" not in entry:
        return [replace(spec, options=options)]
    return [
        Spec(spec.model, f"{spec.label}@{revision}", {**options, "revision": revision})
        for revision in _names(entry["revisions"], f"{where}.revisions")
    ]


def _matches(pattern: str, base: Path, where: str) -> list[str]:
    """Return folders in the order of the numbers in their names: step 900 before step 1000."""
    paths = glob.glob(str((base / Path(pattern).expanduser()).absolute()))
    if not paths:
        raise PlanError(
            f"{where}.checkpoints: no folder matches {pattern!r} (looked in {base.absolute()})."
        )
    return sorted(paths, key=lambda path: (int(re.sub(r"\D", "", Path(path).name) or 0), path))


def _corpus(entry: Any, where: str, base: Path) -> PlannedCorpus:
    """Return the corpus of one entry."""
    if isinstance(entry, str):
        entry = {"data": entry}
    _expect(entry, dict, where, "a name, or a mapping with the key `data`")
    _check_keys(entry, _CORPUS, where)
    valid = "a corpus name, a file or a hub dataset"
    if "data" not in entry:
        raise PlanError(f"{where} needs `data`: {valid}.")
    data = str(_expect(entry["data"], str, f"{where}.data", valid))
    if entry.get("limit") is not None:
        _expect(entry["limit"], int, f"{where}.limit", "a whole number of texts")
    reading: dict[str, Any] = {key: entry.get(key) for key in ("column", "limit")}
    label = str(entry.get("name") or Path(data).stem or data)
    return PlannedCorpus(_located(data, base), **reading, label=label)


def _unique(name: str, names: set[str]) -> str:
    """Return a folder's name that differs from those of other steps, and add it to them."""
    plain = "".join(c if c.isalnum() or c in "._-@" else "-" for c in name).strip(".")
    if len(plain) > _MAX_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        plain = f"{plain[:80]}-{digest[:6]}"
    if is_reserved(plain):
        plain = f"_{plain}"
    if plain.casefold().endswith(_RESERVED_ENDINGS):
        plain = f"{plain}_"
    used = set(map(on_disk, names))
    unique = plain
    number = 1
    while on_disk(unique) in used:
        number += 1
        unique = f"{plain}-{number}"
    names.add(unique)
    return unique


def _steps(
    raw: Any, settings: dict[str, Any], where: str, base: Path, names: set[str]
) -> list[Step]:
    """Return the steps of one entry: a study of all its models, or a run of each of them."""
    kinds = [kind for kind in ("study", *_RUNS) if isinstance(raw, dict) and kind in raw]
    if len(kinds) != 1:
        raise PlanError(
            f"{where} names no `study` (or `profile`, `evaluate`, `probe`), or more than one of "
            "them."
        )
    _check_keys(raw, _STEP, where)
    kind = kinds[0]
    if kind != "study" and "options" in raw:
        raise PlanError(
            f"{where} has `options`, which go with a `study`: write settings of `{kind}` under "
            f"`{kind}`."
        )
    settings = {**settings, **{key: raw[key] for key in _DEFAULTS if key in raw}}
    corpus = _corpus({key: settings[key] for key in ("data", "column", "limit")}, where, base)
    about = str(raw.get("about") or "")
    options = _expect(raw.get("options") or {}, dict, f"{where}.options", "a mapping of options")
    models = _expect(raw.get("models") or [], list, f"{where}.models", "a list of models")
    specs = _models(models, f"{where}.models", base)
    if kind == "study":
        try:
            study = STUDIES.get(str(raw["study"]))
            study.check_models(len(specs))
            study.fill(options)
        except LayerscopeError as error:
            raise PlanError(f"{where}: {error}") from None
        study_settings = {
            key: settings[key] for key in ("max_length", "final_norm", "dtype", "seed")
        }
        return [
            Step(
                "study",
                _checked_name(str(raw.get("name") or study.name), where, names),
                tuple(read_specs(specs)),
                corpus if study.texts and (specs or study.models[0]) else None,
                study_settings,
                study.name,
                dict(options),
                about,
            )
        ]
    run_settings = _run_settings(raw[kind], kind, f"{where}.{kind}")
    # data in the settings, such as images, are read when the step runs
    reads_texts = kind == "profile" and "data" not in run_settings
    if isinstance(run_settings.get("data"), str):
        run_settings["data"] = _located(run_settings["data"], base)
    if kind == "profile":
        limit = "max_length" if reads_texts else "limit"
        run_settings = {
            "final_norm": settings["final_norm"] or "raw",
            "seed": settings["seed"],
            limit: settings[limit],
            **run_settings,
        }
    steps: list[Step] = []
    step_names = set(names)
    for spec in _entries(specs, f"{where}.models"):
        if settings["dtype"] is not None:
            spec = replace(spec, options={"dtype": settings["dtype"], **spec.options})
        if raw.get("name") and len(specs) == 1:
            name = _checked_name(str(raw["name"]), where, step_names)
        else:
            name = _unique(f"{raw.get('name') or kind}-{spec.label}", step_names)
        texts = corpus if reads_texts else None
        steps.append(Step(kind, name, (spec,), texts, run_settings, about=about))
    return steps


def _checked_name(name: str, where: str, names: set[str]) -> str:
    """Return a step's name, if it is a folder's name that no other step has."""
    if (
        on_disk(name) in map(on_disk, names)
        or not re.sub(r"[-_.]", "", name).isalnum()
        or len(name) > _MAX_NAME
        or name.startswith(".")
        or is_reserved(name)
        or name.casefold().endswith(_RESERVED_ENDINGS)
    ):
        raise PlanError(
            f"{where}: the name {name!r} is taken, or is not fit for a folder. Give each step a "
            "different `name` of letters, digits, - and _."
        )
    return name


def _spec(text: str, base: Path) -> Spec:
    """Return a model; one that is a path in the file gets an absolute path, and its folder's name
    as label."""
    spec = read_spec(text)
    located = _located(str(spec.model), base)
    if located == str(spec.model):
        return spec
    return Spec(located, spec.label.replace(str(spec.model), Path(located).name, 1), spec.options)


def _located(name: str, base: Path) -> str:
    """Return the absolute path of a name that is a path from the file's folder; any other name as
    it is."""
    path = base / Path(name).expanduser()
    return str(path.absolute()) if exists(path) else name


def _run_settings(value: Any, kind: str, where: str) -> dict[str, Any]:
    """Return the checked settings of a profile, an evaluation or a probe."""
    valid = {*_parameters(_RUNS[kind], _SET_BY_SWEEP), "batch_size"}
    if kind == "profile":
        valid |= {*Options.__dataclass_fields__, "tokens", "image_pooling", "preset"}
    settings = _settings(value, where, sorted(valid))
    if "preset" in settings:
        preset = get_preset(settings.pop("preset"))
        if "data" in settings:  # the augmenter is for texts, and these data may be images
            preset.pop("augmenter", None)
        settings = {**preset, **settings}
    return settings


def _settings(value: Any, where: str, valid: list[str]) -> dict[str, Any]:
    settings = _expect({} if value is None else value, dict, where, "a mapping of settings")
    _check_keys(settings, valid, where)
    return dict(settings)


def _parameters(function: Any, excluded: set[str]) -> list[str]:
    """Return the names of a function's parameters, except some."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in excluded]


def _expect(value: Any, kinds: type | tuple[type, ...], where: str, valid: str) -> Any:
    """Return the value, if it is of the right kind."""
    if not isinstance(value, kinds) or (
        isinstance(value, bool) and kinds in (int, float, (int, float))
    ):
        shown = "empty" if value is None else f"{type(value).__name__} {value!r}"
        raise PlanError(f"{where} must be {valid}, not {shown}.")
    return value


def _check_keys(mapping: dict[str, Any], valid: Iterable[str], where: str) -> None:
    """Refuse an unknown key."""
    names = list(valid)
    for key in mapping:
        if key not in names:
            raise PlanError(f"{where}: {UnknownNameError('key', str(key), names)}")


def _names(value: Any, where: str) -> list[str]:
    """Return a name or a list of names as a list."""
    is_name = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    names = _entries([value] if is_name else value, where)
    return [
        str(_expect(name, (str, int, float), f"{where}[{i}]", "a name"))
        for i, name in enumerate(names)
    ]


def _entries(value: Any, where: str) -> list[Any]:
    """Return a list, if it is not empty."""
    _expect(value, list, where, "a list")
    if not value:
        raise PlanError(f"{where} is an empty list: name at least one.")
    return list(value)
