"""The house keeps its shape: imports run down the floors only, also inside functions, and no files
import in a circle."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

_HOME = Path(__file__).parents[1] / "src" / "layerscope"

# From the ground up. What stands on one line may not import each other; docs/architecture.md says
# what each is.
FLOORS = (
    ("version",),
    ("errors",),
    ("cache", "terminal", "extras"),
    ("core",),
    ("progress", "loggers"),
    ("spectra", "store"),
    ("metrics", "catalogue", "maps"),
    ("data", "capture"),
    ("models",),
    ("engines",),
    ("forward", "command"),
    ("profiling", "evaluation"),
    ("probing", "training"),
    ("selection",),
    ("exporting",),
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


def test_companion_packages_are_named_in_one_file() -> None:
    """The core finds them by their entry points; `extras.py` says how they are installed."""
    naming = {
        module.relative_to(_HOME).as_posix()
        for module in _modules().values()
        if re.search(r"layerscope[-_](gpu|media|paper|zoo)", module.read_text(encoding="utf-8"))
    }
    assert naming <= {"extras.py"}
