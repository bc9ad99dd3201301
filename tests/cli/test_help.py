"""The command line explains itself: panels, examples, next steps, JSON everywhere, and names that
agree with Python's."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer

import layerscope
from layerscope import accelerator
from layerscope.choose.label_choice import choose_by_labels
from layerscope.cli.app import EXAMPLES, app, load_commands
from layerscope.core.options import DataOptions
from layerscope.core.runs import load_run
from layerscope.profiling.config import ProfileConfig
from tests.cli.support import Cli

load_commands()
doctor: Any = sys.modules["layerscope.cli.doctor"]
GROUP: Any = typer.main.get_command(app)
NAMES = GROUP.list_commands(click.Context(GROUP))


def commands() -> Iterator[tuple[str, Any]]:
    """Every command."""
    for name in NAMES:
        found = GROUP.commands[name]
        if hasattr(found, "commands"):
            yield from ((f"{name} {one}", inner) for one, inner in found.commands.items())
        else:
            yield name, found


def test_commands_are_in_panels_in_the_order_of_a_users_story(cli: Cli) -> None:
    assert NAMES[:3] == ["improve", "compare", "embed"]
    told = cli("--help").out
    places = [told.index(panel) for panel in ("Start here", "Look", "Keep")]
    assert places == sorted(places)
    assert "--install-completion" in told


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_ends_with_an_example_and_there_is_json(cli: Cli, name: str) -> None:
    told = cli(*name.split(), "--help")
    assert told.code == 0
    example = " ".join(told.out.split("Example:")[1].split())
    assert example.startswith(f"layerscope {name}")
    assert "--json" in told.out
    assert "]...]" not in told.out


SHARED = {"device", "model_option", "engine", "overwrite", "as_json", "help"}


@pytest.mark.parametrize("name", NAMES)
def test_a_command_has_few_options(cli: Cli, name: str) -> None:
    options = [one.name for one in GROUP.commands[name].params if one.param_type_name == "option"]
    assert len(set(options) - SHARED) <= 16
    assert len(cli(name, "--help").out.splitlines()) <= 50


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['layerscope', '--help']\n"
        "from layerscope.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'pandas', 'numpy', 'transformers', 'altair') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_python_m_layerscope() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "layerscope", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"layerscope {layerscope.__version__}\n"


# What a command has besides its Python function: how results are shown, and files that Python
# returns as values.
SHOWN = {*SHARED, "option"}
SAME: dict[str, Callable[..., Any]] = {
    "profile": layerscope.profile,
    "evaluate": layerscope.evaluate,
    "select": layerscope.select,
    "export": layerscope.export,
    "probe": layerscope.probe,
    "report": layerscope.write_report,
}
# (command, option): the Python parameter of another name, or None where Python has no use for it
OTHER_NAMES: dict[tuple[str, str], str | None] = {
    ("export", "push"): None,  # export(…).push("user/name", public=True)
    ("export", "public"): None,
    ("export", "yes"): None,
    ("profile", "no_texts"): "texts",
    ("report", "no_texts"): "texts",
}


@pytest.mark.parametrize("name", SAME)
def test_every_option_has_its_twin_in_python(name: str) -> None:
    function = SAME[name]
    known = set(inspect.signature(function).parameters)
    if name == "select":
        known |= set(inspect.signature(choose_by_labels).parameters)
    if name == "profile":
        known |= {
            *DataOptions.names(),
            *ProfileConfig.__dataclass_fields__,
            "alpha",
            "rows",
            "entropy",
            "permutations",
        }
    lacking = []
    for parameter in GROUP.commands[name].params:
        if parameter.name in SHOWN:
            continue
        twin = OTHER_NAMES.get((name, parameter.name), parameter.name)
        if twin is not None and twin not in known:
            lacking.append(parameter.name)
    assert lacking == []


def test_examples_run_one_after_the_other(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tiny model and a few texts in place of the large ones. Each ends with the next
    command."""
    done = []
    for name in ("profile", "list", "doctor"):
        words = shlex.split(
            EXAMPLES[name]
            .replace("smollm2-135m", str(model_folder))
            .replace("--data lee", f"--data {data}")
        )
        words += (
            ["--views", "2", "--option", "permutations=2", "--max-length", "24"]
            if name == "profile"
            else []
        )
        ended = cli(*words[1:])
        assert ended.code == 0, (words, ended.err)
        assert re.search(r"^Next: \S", ended.err, re.MULTILINE), (words, ended.err)
        done.append(name)
    assert "Next: layerscope doctor" in cli("doctor", "--prune", "1GB").err
    assert load_run(tmp_path / "runs" / "profile").kind == "profile"
    ended = cli("report", "runs/profile")
    assert (ended.code, ended.err) == (0, "Next: open report.html in a browser\n")
    ended = cli("select", "runs/profile")
    assert ended.code == 0, ended.err
    assert "Next: layerscope" in ended.err


def test_the_doctor_names_no_paths_and_no_tokens(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prints can go into a bug report as it is."""
    monkeypatch.setenv("HF_TOKEN", "hf_" + "secret" * 5)
    found = json.loads(cli("doctor", "--json").out)["findings"]
    assert {"layerscope", "torch", "extra report", "device", "eigen-solver", "cache"} <= {
        one["name"] for one in found
    }
    monkeypatch.setenv("LAYERSCOPE_CACHE", "/proc/nowhere")
    broken = [
        one
        for one in json.loads(cli("doctor", "--json").out)["findings"]
        if one["status"] == "problem"
    ]
    assert [(one["name"], one["mend"]) for one in broken] == [
        ("cache", "export LAYERSCOPE_CACHE=FOLDER")
    ]
    ended = cli("doctor")
    assert ended.code == 2  # the cache cannot be written
    assert "export LAYERSCOPE_CACHE=FOLDER" in ended.out
    for private in (str(Path.home()), str(tmp_path), "secret", "/proc/nowhere"):
        assert private not in ended.out


def test_the_doctor_looks_for_everything_that_an_extra_installs() -> None:
    """An extra that lacks a package must not be called ok."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    modules = {
        "sentence-transformers": "sentence_transformers",
        "pillow": "PIL",
        "python-calamine": "python_calamine",
        "scikit-learn": "sklearn",
        "vl-convert-python": "vl_convert",
        "layerscope-media": "layerscope_media",
    }
    for extra in doctor.EXTRAS:
        names = {re.split(r"[><=\[]", requirement)[0] for requirement in declared[extra]} - {
            "layerscope"
        }
        required = {modules.get(name, name) for name in names}
        assert required <= set(doctor.extra_modules(extra)), extra
    assert "accelerate" in doctor.extra_modules("gguf")  # transformers reads no GGUF without it


def test_the_doctor_tells_who_has_a_gpu_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.randn
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "randn", lambda *shape, device: made(*shape))  # there is no GPU here
    monkeypatch.setattr(accelerator, "on", lambda device: None)
    found = doctor.check_solver()
    assert (found.status, found.text.endswith("; faster with layerscope-gpu")) == ("note", True)
    assert re.match(r"pip install .*layerscope-gpu", found.mend)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert doctor.check_solver().status == "ok"


def test_the_namespace_shows_everything_public() -> None:
    assert set(layerscope.__all__) == set(dir(layerscope))
    assert {"profile", "load_run", "compare", "select", "write_report"} <= set(dir(layerscope))
    for name in layerscope.__all__:
        assert getattr(layerscope, name) is not None
    assert len(layerscope.__all__) <= 24


@pytest.mark.parametrize("name", ["profile", "evaluate", "probe", "improve", "export"])
def test_out_is_optional_and_named_everywhere(name: str) -> None:
    out = inspect.signature(getattr(layerscope, name)).parameters["out"]
    assert out.default is None
    assert out.kind is out.KEYWORD_ONLY


def test_an_option_of_a_command_is_no_misspelling_of_the_programs() -> None:
    load_commands()
    program: Any = typer.main.get_command(app)
    asked = 0
    for name, command in program.commands.items():
        for option in (
            option for one in command.params for option in one.opts if option.startswith("--")
        ):
            program.make_context(
                "layerscope", [name, option]
            )  # an error where it is taken for one like it
            asked += option == "--device"
    assert asked > 3
