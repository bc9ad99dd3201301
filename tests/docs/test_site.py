"""The site: every page is in the navigation, links lead somewhere, terms are linked once, and the
pages on the command line and on Python are complete."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import layerscope
from layerscope.cli.app import app
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
GENERATED = {
    "reference/cli.md",
    "reference/python.md",
    "changelog.md",
    "contributing.md",
    "decisions/README.md",
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [
        leaf for part in (nav.values() if isinstance(nav, dict) else nav) for leaf in leaves(part)
    ]


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    listed = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    tutorials = {f"tutorials/{script.stem}.md" for script in (DOCS / "tutorials").glob("*.py")}
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) - pages == GENERATED | tutorials
    # decisions have a list of their own
    assert {page for page in pages - set(listed) if not page.startswith("decisions/")} == set()


def test_relative_links_lead_somewhere() -> None:
    broken = []
    generated = {DOCS / name for name in GENERATED} | {
        script.with_suffix(".md") for script in (DOCS / "tutorials").glob("*.py")
    }
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *DOCS.rglob("*.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("packages/*/docs/**/*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            place = Path((page.parent / target).resolve())
            if "://" not in target and not place.exists() and place not in generated:
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_files_that_the_architecture_names_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w/.-]+(?:\.py|/))`", text))
    assert len(names) > 10
    places = (ROOT / "src" / "layerscope", ROOT, ROOT / "packages")
    assert {name for name in names if not any((place / name).exists() for place in places)} == set()


def test_a_term_is_linked_where_it_first_comes() -> None:
    hooks = load("hooks")
    text = "# The sink\n\n`sink` and [the sink](x.md) stay. One sink here, a sink there.\n\n```text\nsink\n```\nA readout."
    linked = hooks.link_terms(text, "../glossary.md")
    assert linked.count("../glossary.md#sink") == 1
    assert "One [sink](../glossary.md#sink){ .term } here, a sink there." in linked
    assert linked.startswith("# The sink\n")
    assert linked.count("#readout") == 1


def test_every_linked_term_is_in_the_glossary() -> None:
    hooks = load("hooks")
    known = {
        hooks._slug(term)
        for term in re.findall(
            r"\*\*([A-Z][\w -]+)\*\*", (DOCS / "glossary.md").read_text(encoding="utf-8")
        )
    }
    assert set(hooks.TERMS.values()) <= known


def test_the_command_line_page_has_every_command() -> None:
    page = load("cli_reference").page()
    for command in [*app.registered_commands, *app.registered_groups]:
        assert f"\n### {command.name}\n" in page
    assert "`--final-norm`" in page
    assert "Sentinel" not in page


def test_the_python_page_has_every_public_name() -> None:
    hooks = load("hooks")
    names = [name for section in hooks.PUBLIC.values() for name in section]
    assert sorted(names) == sorted(name for name in layerscope.__all__ if name != "__version__")
    page = hooks.python_reference()
    for name in names:
        assert re.search(rf"^::: layerscope\.[\w.]+\.{name}$", page, re.MULTILINE)


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", t.lower()).strip()) for t in titles}


def test_links_to_sections_lead_to_a_heading() -> None:
    broken = []
    for page in [ROOT / "README.md", *DOCS.glob("*.md"), *ROOT.glob("packages/*/docs/**/*.md")]:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#\s]*\.md)?#([\w-]+)\)", text):
            place = (page.parent / target).resolve() if target else page
            if place.is_file() and anchor not in headings(place):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("published", [False, True])
def test_links_to_the_repository_wait_for_its_publication(
    published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = load("hooks")
    monkeypatch.setattr(
        hooks, "repository", lambda: "https://github.com/some/where" if published else None
    )
    page = SimpleNamespace(file=SimpleNamespace(src_uri="export.md"))
    text = (
        "[the script](../benchmarks/improve.py), [Makefile](../Makefile), "
        "[metrics](metrics.md#conventions), ![x](images/layers.png) ([rows](../benchmarks/blocks.py))"
    )
    made = hooks.on_page_markdown(
        text, page, None, SimpleNamespace(get_file_from_path=lambda path: None)
    )
    tutorial = hooks.tutorial(DOCS / "tutorials" / "read-a-profile.ipynb")
    assert "[metrics](metrics.md#conventions), ![x](images/layers.png)" in made
    assert "[Download the notebook](read-a-profile.ipynb)" in tutorial
    assert ("colab.research.google.com/github/some/where/blob" in tutorial) is published
    if published:
        assert made.startswith(
            "[the script](https://github.com/some/where/blob/main/benchmarks/improve.py), "
        )
    else:
        assert made.startswith(
            "the script (`benchmarks/improve.py` in the repository), `Makefile`, "
        )
        assert made.endswith("(rows: `benchmarks/blocks.py`)")


def test_every_picture_is_shown_and_has_a_source() -> None:
    pictures = {path.name for path in (DOCS / "images").glob("*.png")}
    heads = [
        line.partition(": ")[0]
        for line in (DOCS / "images" / "sources.txt").read_text(encoding="utf-8").splitlines()[2:]
    ]
    assert sorted(name for head in heads for name in head.split(", ")) == sorted(pictures)
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    links = re.compile(r"!\[[^\]]*\]\(([^)]+)\)|\bsrc(?:set)?=\"([^\"]+)\"")
    shown = {
        Path(a or b).name
        for page in pages
        for a, b in links.findall(page.read_text(encoding="utf-8"))
    }
    assert pictures - shown == set()


def test_pictures_that_the_build_draws_are_drawn_as_their_list_says() -> None:
    pictures = load("pictures")
    drawn = {name for names in pictures.SCRIPTS.values() for name in names}
    assert drawn <= {path.name for path in (DOCS / "images").glob("*.png")}
    commands = dict(
        line.split(": ", 1)
        for line in (DOCS / "images" / "sources.txt").read_text(encoding="utf-8").splitlines()[2:]
    )
    for script, names in pictures.SCRIPTS.items():
        assert commands[", ".join(names)] == f"python docs/{script}"


def test_a_script_draws_into_the_given_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = load("pictures")
    monkeypatch.setattr(pictures, "SCRIPTS", {"draw_layers.py": ["layers.png", "choice.png"]})
    drawn = pictures.draw(tmp_path / "images")
    assert [path.name for path in drawn] == ["layers.png", "choice.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)
