"""Every block of code in the documentation is checked: Python is run, commands are parsed by the
app, plans and settings read."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer
import yaml

import layerscope
from layerscope.cli.app import app, load_commands
from layerscope.metrics.registry import REGISTRY
from tests.cli.support import run_main
from tests.docs.blocks import LANGUAGES, ROOT, Block, all_blocks, beyond, blocks_of, commands, pages
from tests.docs.sandbox import deepest, fill_folder, given, stand_ins

BLOCKS = all_blocks()
SHELL = [block for block in BLOCKS if block.language in ("bash", "console")]
PYTHON_PAGES = [
    page for page in pages() if any(block.language == "python" for block in blocks_of(page))
]
CODE_PAGES = [
    page
    for page in pages()
    if any(block.language in ("python", "bash", "console") for block in blocks_of(page))
]
# Programs of others that the pages name; only their being meant is checked.
OTHERS = {
    "ray",
    "ssh",
    "git",
    "export",
    "set",
    "jupyter",
    "cd",
    "pre-commit",
    "conda",
    "uv",
    "hf",
    "layerscope-zoo",
    "source",
    "py",
    "pytest",
}


@pytest.fixture(autouse=True)
def forgotten_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that a block makes metrics are forgotten after it: other tests look at all that are
    known."""
    REGISTRY.load()
    monkeypatch.setattr(REGISTRY, "_things", dict(REGISTRY._things))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_block_names_its_language() -> None:
    assert [
        f"{block} ```{block.language}" for block in BLOCKS if block.language not in LANGUAGES
    ] == []


def test_a_block_that_is_not_run_says_why() -> None:
    assert [str(block) for block in BLOCKS if block.reason and len(block.reason) < 10] == []


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=name)
def test_python_blocks_are_python_and_name_what_exists(page: Path) -> None:
    for block in (block for block in blocks_of(page) if block.language == "python"):
        compile(block.text, str(block), "exec")
        check_names(block)


@pytest.mark.slow  # `make docs`; quickly: what the blocks name exists
@pytest.mark.parametrize("page", CODE_PAGES, ids=name)
def test_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Python and its commands, one after the other, as a reader would."""
    if not any(runs(block) for block in blocks_of(page)):
        return
    stand_ins(monkeypatch, tmp_path / "stand-ins", deepest(page.read_text(encoding="utf-8")))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    fill_folder(tmp_path / "work")
    namespace = given()
    prepare = ROOT / "tests" / "docs" / "before" / f"{page.stem}.py"
    if prepare.is_file():  # what a page assumes to be there already, such as a finished run
        exec(compile(prepare.read_text(encoding="utf-8"), str(prepare), "exec"), namespace)
    for block in (block for block in blocks_of(page) if runs(block)):
        if block.language == "python":
            # the line numbers of an error are those of the page
            tree = ast.increment_lineno(ast.parse(block.text, str(ROOT / block.page)), block.line)
            exec(compile(tree, str(ROOT / block.page), "exec"), namespace)
            continue
        for words in (
            words for words in commands(block) if beyond(without_variables(words)) is None
        ):
            for variable in words[: words.index("layerscope")]:
                monkeypatch.setenv(*variable.split("=", 1))
            ended = run_main(monkeypatch, capsys, *without_variables(words)[1:])
            assert ended.code == 0, f"{block}: {shlex.join(words)}\n{ended.err}"


def runs(block: Block) -> bool:
    """Return whether a part of a block is run."""
    if block.reason or block.title:
        return False
    if block.language == "python":
        return True
    return block.language in ("bash", "console") and any(
        beyond(without_variables(words)) is None for words in commands(block)
    )


def without_variables(words: list[str]) -> list[str]:
    """A command without what is set for it alone."""
    return (
        list(itertools.dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=\S*", word), words)) or words
    )


def check_names(block: Block) -> None:
    """Check that the names which a block takes from layerscope exist."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "layerscope":
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block}: {node.module} has no {alias.name}"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "layerscope"
        ):
            assert hasattr(layerscope, node.attr), f"{block}: layerscope has no {node.attr}"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_are_understood(block: Block) -> None:
    count = 0
    for words in commands(block):
        check_command(block, words)
        count += 1
    assert count, f"{block} holds no command; mark output as ```text"


def check_command(block: Block, words: list[str]) -> None:
    program, *arguments = words
    line = f"{block}: {shlex.join(words)}"
    if program == "layerscope":
        parse([word for word in arguments if word != "…"], line)
    elif program == "python":
        check_script(arguments, line)
    elif program == "make":
        targets = re.findall(
            r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert arguments[0] in targets, f"{line}: the Makefile has no such target"
    elif program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        for extras in re.findall(r"(?:layerscope|\.)\[([\w,-]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= set(known), f"{line}: an unknown extra"
    else:
        bare = re.fullmatch(r"[A-Z_]+=\S*", program)  # a variable set for the command behind it
        if bare and arguments:
            check_command(block, arguments)
        else:
            assert program in OTHERS, f"{line}: an unknown program"


@patch("layerscope.data.corpus.refuse_missing", lambda data: None)  # a reader's files are not here
def parse(words: list[str], line: str) -> None:
    """Let the app read the command line, without running it."""
    load_commands()
    command: Any = typer.main.get_command(app)
    context = None
    remaining = words
    try:
        while True:
            context = command.make_context(
                getattr(command, "name", None) or "layerscope", list(remaining), parent=context
            )
            if not hasattr(command, "resolve_command"):
                return
            remaining = [*getattr(context, "_protected_args", []), *context.args]
            if not remaining:
                return
            _, command, remaining = command.resolve_command(context, remaining)
    except SystemExit as leaving:  # --help and --version
        if leaving.code:
            pytest.fail(line)
    except Exception as error:
        if type(error).__name__ != "Exit":
            pytest.fail(f"{line}: {getattr(error, 'message', error)}")


def check_script(words: list[str], line: str) -> None:
    """The script or module exists, and knows the options that it is given."""
    if words[0] == "-m":
        spec = importlib.util.find_spec(words[1])
        assert spec is not None, f"{line}: no such module"
        source = "" if spec.origin is None else Path(spec.origin).read_text(encoding="utf-8")
    elif words[0] == "-c":
        compile(words[1], line, "exec")
        return
    else:
        assert (ROOT / words[0]).is_file(), f"{line}: no such file"
        folder = (ROOT / words[0]).parent
        if "    run_script(" in (ROOT / words[0]).read_text(
            encoding="utf-8"
        ):  # a study, which takes the options of the command
            return
        # options may be declared in a file beside it
        source = "\n".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    for option in (word.split("=")[0] for word in words[1:] if word.startswith("--")):
        assert f'"{option}"' in source or source == "", f"{line}: no option {option}"


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in ("toml", "yaml")], ids=str
)
def test_settings_and_plans_are_read(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-training" / "checkpoint-1").mkdir(parents=True)
    fill_folder(tmp_path)
    if block.language == "toml":
        for group, points in (
            tomllib.loads(block.text).get("project", {}).get("entry-points", {}).items()
        ):
            assert group.startswith("layerscope."), f"{block}: {group}"
            assert points
        return
    assert yaml.safe_load(block.text)


def test_a_broken_block_is_found(tmp_path: Path) -> None:
    wrong = Block("page.md", 1, "bash", "layerscope profile smollm2-135m --metrix x")
    with pytest.raises(pytest.fail.Exception, match="--metrix"):
        test_commands_are_understood(wrong)
    with pytest.raises(AssertionError, match="has no porfile"):
        check_names(Block("page.md", 1, "python", "import layerscope\nlayerscope.porfile('x')"))
    with pytest.raises(AssertionError, match="no such file"):
        test_commands_are_understood(Block("page.md", 1, "bash", "python benchmarks/none.py"))


def test_what_the_sandbox_has_is_run() -> None:
    page = {
        "layerscope profile smollm2-135m --data texts.txt": None,
        "layerscope report runs/a --out report.html": None,
        "layerscope profile EleutherAI/pythia-410m": "on the hub",
        "layerscope probe MODEL --data DATA": "filled in",
        "layerscope profile smollm2-135m --engine ray": "a cluster",
        "hf auth login": "others",
    }
    for line, reason in page.items():
        actual = beyond(shlex.split(line))
        assert actual is None if reason is None else reason in str(actual), line
    assert without_variables(["A=1", "layerscope", "doctor"]) == ["layerscope", "doctor"]
    assert not runs(Block("page.md", 1, "bash", "layerscope doctor", reason="it takes hours"))


@pytest.fixture(autouse=True)
def no_leftovers() -> Any:
    """Modules of the pages' own do not stay for other tests."""
    before = set(sys.modules)
    yield
    for extra in set(sys.modules) - before:
        if extra.startswith("my_"):
            del sys.modules[extra]
