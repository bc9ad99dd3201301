"""A plan: the YAML file of a sweep or a recipe, checked, as a list of steps.

A plan has a grid, steps, or both. The grid (`models`, `corpora`, `profile`, `evaluate`, `probe`)
profiles every model on every corpus, and evaluates or probes every model where that is asked for.
`steps` are written out one by one: each is a study, a profile, an evaluation or a probe, on models
and texts of its own. Mistakes are reported before anything runs; the message names the place, what
is there and what is valid.
"""

from __future__ import annotations

import glob
import hashlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path, PurePosixPath, PureWindowsPath
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
    "out",
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
    "data": "lee", "limit": None, "column": None, "max_length": 256, "final_norm": None, "dtype": None, "seed": 0,
}  # fmt: skip
_STEP = ("name", "about", "study", "profile", "evaluate", "probe", "models", "options", *_DEFAULTS)
_RECIPES = "layerscope_paper.sweeps.recipes"
# What a plan sets itself, or what belongs to a single run
_MOST_LETTERS = 120
# files of a run's folder: a step's folder must not stand where the sweep writes, or be taken for
# what a killed run left
_OWN_ENDINGS = (".json", ".parquet", ".csv", ".lock", ".part", ".old")
_SET_HERE = {
    "model",
    "tokenizer",
    "out",
    "overwrite",
    "progress",
    "engine",
    "address",
}
_WITHOUT = {"profile": _SET_HERE}


class PlanError(LayerscopeError):
    """A plan that says something that is not understood."""


@dataclass(frozen=True)
class SweepPlan:
    """A checked plan. `corpora` are those of the grid."""

    name: str
    about: str
    steps: list[Step]
    corpora: list[PlannedCorpus] = field(default_factory=list)
    out: str | None = None

    def only(self, names: Iterable[str] | None) -> SweepPlan:
        """The same plan with some of its steps, by name."""
        wanted = list(names or ())
        known = [step.name for step in self.steps]
        for name in wanted:
            if name not in known:
                raise UnknownNameError(f"step of {self.name}", name, known)
        return (
            replace(self, steps=[step for step in self.steps if step.name in wanted])
            if wanted
            else self
        )

    @property
    def folder(self) -> str | None:
        """Where a plan that is a file writes, if it says so: it may be a stranger's, so it cannot
        name a place elsewhere."""
        for kind in (PurePosixPath, PureWindowsPath):
            place = kind(self.out or "")
            if place.anchor or ".." in place.parts or place.parts[:1] == ("~",):
                raise PlanError(
                    f"the plan's `out` ({self.out!r}) is not in the folder that the command runs "
                    "in. A plan may be somebody else's: say it yourself with out=."
                )
        if (
            not Path(self.out or "").resolve().is_relative_to(Path.cwd().resolve())
        ):  # a link may lead elsewhere
            raise PlanError(
                f"the plan's `out` ({self.out!r}) is a link out of the folder that the command "
                "runs in: give out=."
            )
        return self.out

    def set(self, **settings: Any) -> SweepPlan:
        """The same plan with settings of the command that runs it (see `Step`)."""
        steps = [replace(step, **settings) for step in self.steps]
        return replace(self, steps=steps)


def recipes() -> list[str]:
    """The plans that come with the package."""
    return sorted(
        item.name.removesuffix(".yaml")
        for item in resources.files(_RECIPES).iterdir()
        if item.name.endswith(".yaml")
    )


def read_plan(source: str | Path | Mapping[str, Any]) -> SweepPlan:
    """A checked plan from a YAML file, a recipe of the package by name, or a mapping of the same
    shape.

    A path in a file is looked for where the file is, then where the command runs.
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
        return _plan(
            _expect(content, dict, "the file", "a mapping with the key `models` or `steps`"),
            base,
            path.stem,
        )
    except LayerscopeError as error:
        raise PlanError(f"{source}: {error}") from None


def _read_text(path: Path) -> str:
    """The text of a plan's file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{path} is not UTF-8 (byte {error.start}). Convert it: iconv -f LATIN1 -t UTF-8."
        ) from error


def _plan(content: dict[str, Any], base: Path, name: str) -> SweepPlan:
    _only(content, _TOP, "the plan")
    given: Any = content.get("models")
    if given is None and "steps" not in content:
        raise PlanError(
            "`models` is missing: a list of catalogue names, hub ids or folders. (Or give a list "
            "of `steps`.)"
        )
    corpora, steps = ([], []) if given is None else _grid(content, base)
    defaults = _settings(content.get("defaults"), "defaults", list(_DEFAULTS))
    for i, raw in enumerate(_entries(content["steps"], "steps") if "steps" in content else []):
        steps += _steps(
            raw, {**_DEFAULTS, **defaults}, f"steps[{i}]", base, {step.name for step in steps}
        )
    out = content.get("out")
    return SweepPlan(
        str(content.get("name") or name),
        str(content.get("about") or ""),
        steps,
        corpora,
        None if out is None else str(_expect(out, str, "out", "a folder's name")),
    )


# --- the grid
#   -------------------------------------------------------------------------------------------------------------------


def _grid(content: dict[str, Any], base: Path) -> tuple[list[PlannedCorpus], list[Step]]:
    """Every model on every corpus, then on tasks and probes; a model's steps lie together, since
    its files are then at hand."""
    models = _models(_entries(content["models"], "models"), "models", base)
    settings = {
        kind: _run_settings(content[kind], kind, kind)
        for kind in ("profile", "evaluate", "probe")
        if kind in content
    }
    if "data" in settings.get("profile", {}):
        raise PlanError(
            "profile has `data`: name what all models read under `corpora`, or give the profile "
            "under `steps`."
        )
    # without any corpora `lee`, unless the plan evaluates or probes and does not mention profiles
    given = content.get("corpora", ["lee"] if "profile" in settings or not settings else [])
    corpora = [
        _corpus(one, f"corpora[{i}]", base)
        for i, one in enumerate(_entries(given, "corpora") if given else [])
    ]
    steps: list[Step] = []
    taken: set[str] = set()
    for spec in models:
        for corpus in corpora:
            name = _unique(f"{spec.label}--{corpus.label}", taken)
            steps.append(Step("profile", name, (spec,), corpus, settings.get("profile", {})))
        for kind, suffix in (("evaluate", "tasks"), ("probe", "probe")):
            if kind in settings:
                steps.append(
                    Step(
                        kind,
                        _unique(f"{spec.label}--{suffix}", taken),
                        (spec,),
                        None,
                        settings[kind],
                    )
                )
    return corpora, steps


def _models(given: list[Any], where: str, base: Path) -> list[Spec]:
    return [spec for i, one in enumerate(given) for spec in _model(one, f"{where}[{i}]", base)]


def _model(one: Any, where: str, base: Path) -> list[Spec]:
    if isinstance(one, str):
        return [_spec(one, base)]
    _expect(one, dict, where, "a name, or a mapping with the key `name`")
    options = _parameters(load, {"spec", "revision"})
    _only(one, [*_MODEL, *options], where)
    if "name" not in one and "checkpoints" not in one:
        raise PlanError(
            f"{where} needs a `name` (catalogue name, hub id or folder), or `checkpoints` "
            "(folders)."
        )
    chosen = {
        key: tuple(value) if key == "adapters" else value
        for key, value in one.items()
        if key in options
    }
    if "checkpoints" in one:
        if "revisions" in one or "name" in one:
            raise PlanError(
                f"{where} has `checkpoints`, which are folders: `name` and `revisions` go with hub "
                "models."
            )
        patterns = _names(one["checkpoints"], f"{where}.checkpoints")
        return [
            Spec(path, Path(path).name, chosen)
            for pattern in patterns
            for path in _matches(pattern, base, where)
        ]
    spec = _spec(str(_expect(one["name"], str, f"{where}.name", "a model's name")), base)
    if "revisions" not in one:
        return [replace(spec, options={**spec.options, **chosen})]
    return [
        Spec(
            spec.model, f"{spec.label}@{revision}", {**spec.options, **chosen, "revision": revision}
        )
        for revision in _names(one["revisions"], f"{where}.revisions")
    ]


def _matches(pattern: str, base: Path, where: str) -> list[str]:
    """Folders in the order of the numbers in their names: step 900 before step 1000."""
    found = glob.glob(str((base / Path(pattern).expanduser()).absolute()))
    if not found:
        raise PlanError(
            f"{where}.checkpoints: no folder matches {pattern!r} (looked in {base.absolute()})."
        )
    return sorted(
        found, key=lambda path: (int("".join(c for c in Path(path).name if c.isdigit()) or 0), path)
    )


def _corpus(one: Any, where: str, base: Path) -> PlannedCorpus:
    entry = (
        {"data": one}
        if isinstance(one, str)
        else _expect(one, dict, where, "a name, or a mapping with the key `data`")
    )
    _only(entry, _CORPUS, where)
    if "data" not in entry:
        raise PlanError(f"{where} needs `data`: a corpus name, a file or a hub dataset.")
    data = str(
        _expect(entry["data"], str, f"{where}.data", "a corpus name, a file or a hub dataset")
    )
    if entry.get("limit") is not None:
        _expect(entry["limit"], int, f"{where}.limit", "a whole number of texts")
    reading: dict[str, Any] = {key: entry.get(key) for key in ("column", "limit")}
    return PlannedCorpus(
        _located(data, base), **reading, label=str(entry.get("name") or Path(data).stem or data)
    )


def _unique(name: str, taken: set[str]) -> str:
    """A folder's name that no other step has."""
    plain = "".join(c if c.isalnum() or c in "._-@" else "-" for c in name).strip(".")
    if len(plain) > _MOST_LETTERS:
        plain = (
            f"{plain[:80]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"
        )
    plain = f"_{plain}" if is_reserved(plain) else plain
    plain = f"{plain}_" if plain.casefold().endswith(_OWN_ENDINGS) else plain
    known = set(map(on_disk, taken))
    found = next(
        n
        for n in (plain, *(f"{plain}-{i}" for i in range(2, len(taken) + 3)))
        if on_disk(n) not in known
    )
    taken.add(found)
    return found


# --- single steps
#   ---------------------------------------------------------------------------------------------------------------


def _steps(
    raw: Any, settings: dict[str, Any], where: str, base: Path, taken: set[str]
) -> list[Step]:
    """One entry of `steps`: a study of all its models, or a run of each of them."""
    kinds = [
        kind
        for kind in ("study", "profile", "evaluate", "probe")
        if isinstance(raw, dict) and kind in raw
    ]
    if len(kinds) != 1:
        raise PlanError(
            f"{where} names no `study` (or `profile`, `evaluate`, `probe`), or more than one of "
            "them."
        )
    _only(raw, _STEP, where)
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
    specs = _models(
        _expect(raw.get("models") or [], list, f"{where}.models", "a list of models"),
        f"{where}.models",
        base,
    )
    if kind == "study":
        try:
            study = STUDIES.get(str(raw["study"]))
            study.check_models(len(specs))
            study.fill(options)
        except LayerscopeError as error:
            raise PlanError(f"{where}: {error}") from None
        used = {key: settings[key] for key in ("max_length", "final_norm", "dtype", "seed")}
        name = _name(str(raw.get("name") or study.name), where, taken)
        needed = corpus if study.texts and (specs or study.models[0]) else None
        return [
            Step(
                "study",
                name,
                tuple(read_specs(specs)),
                needed,
                used,
                study.name,
                dict(options),
                about,
            )
        ]
    own = _run_settings(raw[kind], kind, f"{where}.{kind}")
    reads_texts = (
        kind == "profile" and "data" not in own
    )  # data of its own, such as images, are read when the step runs
    if isinstance(own.get("data"), str):
        own["data"] = _located(own["data"], base)
    if kind == "profile":
        limit = "max_length" if reads_texts else "limit"
        own = {
            "final_norm": settings["final_norm"] or "raw",
            "seed": settings["seed"],
            limit: settings[limit],
            **own,
        }
    steps: list[Step] = []
    names = set(taken)
    for spec in _entries(specs, f"{where}.models"):
        if settings["dtype"] is not None:
            spec = replace(spec, options={"dtype": settings["dtype"], **spec.options})
        if raw.get("name") and len(specs) == 1:
            name = _name(str(raw["name"]), where, names)
        else:
            name = _unique(f"{raw.get('name') or kind}-{spec.label}", names)
        steps.append(Step(kind, name, (spec,), corpus if reads_texts else None, own, about=about))
    return steps


def _name(name: str, where: str, taken: set[str]) -> str:
    known = on_disk(name) in map(on_disk, taken)
    plain = (
        name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        and len(name) <= _MOST_LETTERS
    )
    if (
        known
        or not plain
        or name.startswith(".")
        or is_reserved(name)
        or name.casefold().endswith(_OWN_ENDINGS)
    ):
        raise PlanError(
            f"{where}: the name {name!r} is taken, or is not fit for a folder. Give each step a "
            "plain `name` of its own."
        )
    return name


# --- pieces
#   ---------------------------------------------------------------------------------------------------------------------


def _spec(text: str, base: Path) -> Spec:
    """A model; one that is a path in the file has an absolute path, and is called by its folder's
    name."""
    spec = read_spec(text)
    located = _located(str(spec.model), base)
    if located == str(spec.model):
        return spec
    return Spec(located, spec.label.replace(str(spec.model), Path(located).name, 1), spec.options)


def _located(name: str, base: Path) -> str:
    """A path is looked for where the file is; anything else is a name, or a path from where the
    command runs."""
    path = base / Path(name).expanduser()
    return str(path.absolute()) if exists(path) else name


def _run_settings(given: Any, kind: str, where: str) -> dict[str, Any]:
    function = {"profile": profile, "evaluate": evaluate, "probe": probe}[kind]
    valid = _parameters(function, _WITHOUT.get(kind, _SET_HERE))
    more = (
        [*Options.__dataclass_fields__, "tokens", "image_pooling", "preset"]
        if kind == "profile"
        else []
    )  # given as flat keywords
    settings = _settings(given, where, sorted({*valid, *more, "batch_size"}))
    if "preset" in settings:
        preset = get_preset(settings.pop("preset"))
        if "data" in settings:  # images, whose views are made in another way
            preset.pop("augmenter", None)
        settings = {**preset, **settings}
    return settings


def _settings(given: Any, where: str, valid: list[str]) -> dict[str, Any]:
    settings = _expect({} if given is None else given, dict, where, "a mapping of settings")
    _only(settings, valid, where)
    return dict(settings)


def _parameters(function: Any, without: set[str]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [
        each.name
        for each in parameters
        if each.kind is not each.VAR_KEYWORD and each.name not in without
    ]


def _expect(value: Any, kinds: type | tuple[type, ...], where: str, wanted: str) -> Any:
    """The value, if it is of the right kind."""
    if not isinstance(value, kinds) or (
        isinstance(value, bool) and kinds in (int, float, (int, float))
    ):
        shown = "empty" if value is None else f"{type(value).__name__} {value!r}"
        raise PlanError(f"{where} must be {wanted}, not {shown}.")
    return value


def _only(mapping: dict[str, Any], valid: Iterable[str], where: str) -> None:
    """Refuse a key that means nothing here."""
    names = list(valid)
    for key in mapping:
        if key not in names:
            raise PlanError(f"{where}: {UnknownNameError('key', str(key), names)}")


def _names(value: Any, where: str) -> list[str]:
    """A name, or a list of them."""
    many = (
        [value] if isinstance(value, (str, int, float)) and not isinstance(value, bool) else value
    )
    return [
        str(_expect(one, (str, int, float), f"{where}[{i}]", "a name"))
        for i, one in enumerate(_entries(many, where))
    ]


def _entries(value: Any, where: str) -> list[Any]:
    """A list that is not empty."""
    _expect(value, list, where, "a list")
    if not value:
        raise PlanError(f"{where} is an empty list: name at least one.")
    return list(value)
