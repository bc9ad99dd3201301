"""The house keeps its shape: imports run down the floors only, also inside functions, and no files
import in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_HOME = Path(__file__).parents[1] / "src" / "layerscope"

# From the ground up. What stands on one line may not import each other; docs/architecture.md says
# what each is.
FLOORS = (
    ("version",),
    ("errors",),
    ("cache", "terminal", "extras"),
    ("core",),
    ("accelerator", "progress"),
    ("spectra", "store"),
    ("metrics", "catalogue", "maps"),
    ("data", "capture"),
    ("models",),
    ("engines",),
    ("forward", "command"),
    ("vectors",),
    ("profiling", "evaluation"),
    ("probing", "training"),
    ("choose",),
    ("exporting",),
    ("blocks",),
    ("improving",),
    ("embedding",),
    ("report",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)


@cache
def _modules() -> dict[str, Path]:
    found = {}
    for path in _HOME.rglob("*.py"):
        parts = ("layerscope", *path.relative_to(_HOME).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports() -> dict[str, set[str]]:
    """Which of our modules each of them imports, anywhere in its text."""
    modules = _modules()
    arrows: dict[str, set[str]] = {}
    for name, path in modules.items():
        wanted: set[str] = set()
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                inside = below & set(modules)
                # a name that a package hands on is an import of the package; a module taken from it
                # is one of the module
                wanted |= inside if inside == below else inside | {node.module}
        arrows[name] = {target for target in wanted if target in modules and target != name}
    return arrows


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _floor(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def test_every_room_has_a_floor() -> None:
    rooms = {_room(name) for name in _modules()}
    assert rooms == {room for rooms in FLOORS for room in rooms}


def test_imports_run_down_only() -> None:
    climbing = [
        f"{name} imports {target}"
        for name, targets in sorted(_imports().items())
        for target in sorted(targets)
        if _room(name) != _room(target) and _floor(_room(target)) >= _floor(_room(name))
    ]
    assert climbing == []


def test_no_files_import_each_other_in_a_circle() -> None:
    arrows = _imports()
    done: set[str] = set()
    circles: list[str] = []

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circles.append(" → ".join((*way[way.index(name) :], name)))
            return
        if name in done:
            return
        for target in sorted(arrows[name]):
            visit(target, (*way, name))
        done.add(name)

    for name in sorted(arrows):
        visit(name, ())
    assert circles == []


_POSIX_ALONE = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}


def test_no_file_needs_a_posix_module_to_be_imported() -> None:
    """Windows has none of them: they are imported inside functions, or where their absence is
    provided for."""
    found = []
    for name, path in _modules().items():
        for node in _parsed(path).body:  # what runs on import; `try` is left out
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            found += [
                f"{name} imports {module}"
                for module in named
                if module.split(".")[0] in _POSIX_ALONE
            ]
    assert found == []


# The packages beside the core
# ------------------------------------------------------------------------------------------------


_PACKAGES = sorted((_HOME.parents[1] / "packages").glob("layerscope-*/src/**/*.py"))


@cache
def _declared(module: str) -> frozenset[str]:
    """Return the names that a module of the core lists in `__all__`."""
    for node in _parsed(_modules()[module]).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def _taken_from_the_core(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each module of the core that a file uses, and each name that it takes from it: by an
    import, or as an attribute of an imported module. The name is empty for the module itself."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "layerscope":
                    modules[alias.asname or "layerscope"] = (
                        alias.name if alias.asname else "layerscope"
                    )
                    yield alias.name, ""
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "layerscope":
            assert node.module is not None
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if module in _modules() and alias.name not in _declared(node.module):
                    modules[alias.asname or alias.name] = module
                    yield module, ""
                else:
                    yield node.module, alias.name

    def module_of(node: ast.AST) -> str:
        """Return the module that a name or a chain of attributes stands for; "": none."""
        if isinstance(node, ast.Name):
            return modules.get(node.id, "")
        parent = module_of(node.value) if isinstance(node, ast.Attribute) else ""
        module = f"{parent}.{node.attr}" if isinstance(node, ast.Attribute) and parent else ""
        return module if module in _modules() else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and module_of(node.value) and not module_of(node):
            yield module_of(node.value), node.attr


def _not_published(source: str) -> list[str]:
    """Return what a file takes from the core that the core does not publish."""
    return [
        f"{module}: {name}" if name else module
        for module, name in _taken_from_the_core(ast.parse(source))
        if any(part.startswith("_") for part in (*module.split("."), name))
        or (name and name not in _declared(module))
    ]


def test_packages_take_what_the_core_publishes() -> None:
    """A name is public if the module that it is imported from lists it in `__all__`."""
    assert len(_PACKAGES) > 100
    found = {
        str(file.relative_to(_HOME.parents[1])): _not_published(file.read_text(encoding="utf-8"))
        for file in _PACKAGES
    }
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from layerscope.models import load, wrap", []),
        ("from layerscope.store import atomic\natomic.plain(1)", []),
        ("from layerscope.models import wrap, tiny", ["layerscope.models: tiny"]),
        ("def f():\n    from layerscope.forward import Look", ["layerscope.forward: Look"]),
        ("from layerscope.forward import _SHARD_BYTES", ["layerscope.forward: _SHARD_BYTES"]),
        ("from layerscope import forward\nforward.Look", ["layerscope.forward: Look"]),
        ("import layerscope\nlayerscope.load(1), layerscope.VERSION", ["layerscope: VERSION"]),
        ("import layerscope.forward as f\nf._SHARD_BYTES", ["layerscope.forward: _SHARD_BYTES"]),
        ("import layerscope.forward\nlayerscope.forward.Look", ["layerscope.forward: Look"]),
        ("import layerscope.data._rows", ["layerscope.data._rows"]),
    ],
)
def test_what_is_not_published_is_found(source: str, found: list[str]) -> None:
    assert _not_published(source) == found


_COMPANIONS = re.compile(r"layerscope[-_](gpu|media|paper|zoo)")


def test_companion_packages_are_named_in_one_file() -> None:
    """The core finds them by their entry points; `extras.py` says how they are installed."""
    naming = {
        module.relative_to(_HOME).as_posix()
        for module in _modules().values()
        if _COMPANIONS.search(module.read_text(encoding="utf-8"))
    }
    assert naming <= {"extras.py"}


@pytest.mark.parametrize("package", ["gpu", "media", "paper", "zoo"])
@pytest.mark.parametrize(
    "line",
    ["import layerscope_{}", "importlib.import_module('layerscope_{}.x')", "# layerscope-{}"],
)
def test_a_companion_that_is_named_is_found(line: str, package: str) -> None:
    assert _COMPANIONS.search(line.format(package))
    assert not _COMPANIONS.search("from layerscope.extras import describe_extra")
