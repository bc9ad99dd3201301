"""What the site adds to the pages: tutorials and the command line as pages, and links that leave
the folder `docs`.

mkdocs calls these functions. They need no torch: `make docs` writes the command line's page with
layerscope's own environment.
"""

from __future__ import annotations

import ast
import base64
import html
import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WRITTEN = ROOT / "build" / "docs"  # pages that were written before: `make docs`
GLOSSARY = "glossary.md"
TERMS = {
    "readouts?": "readout",
    "[Pp]rompt entropy": "prompt-entropy",
    "sinks?(?: token)?": "sink",
    "final norm": "final-norm",
    "valleys?": "valley",
    "probes?": "probe",
    "baseline": "baseline",
    "candidates?": "candidate",
}
"""Patterns of terms that a new reader may not know, and their anchors in the glossary."""
PUBLIC = {
    "Improve, choose, export": ("improve", "select", "export", "Improved", "Choice", "Exported"),
    "Measure": ("profile", "evaluate", "probe", "Profile", "Evaluation", "ProbeRun"),
    "Embed, search, compare": ("encode", "embed", "search", "compare"),
    "Models and runs": ("load", "wrap", "Readout", "load_run", "write_report", "LayerscopeError"),
}
"""The public names, by section of the page on Python."""
_LINK = re.compile(r"\[([^\[\]]*)(\]\()((?:\.\./)*[\w./-]+)((?:#[\w-]+)?\))")


def repository() -> str | None:
    """Where the source is published, from the package's own facts; None where it is not published
    yet."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return (
        str(facts["project"]["urls"]["Source"])
        if facts["tool"]["layerscope"]["published"]
        else None
    )


def on_config(config: Any) -> Any:
    """The repository's address has one home: pyproject.toml."""
    # as a plain link: the theme's own box would ask GitHub for the number of stars
    address = repository()
    if address is not None:
        config.extra["social"] = [
            {"icon": "fontawesome/brands/github", "link": address, "name": "Source"}
        ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from something else."""
    from mkdocs.structure.files import File

    for notebook in sorted((DOCS / "tutorials").glob("*.ipynb")):
        name = f"tutorials/{notebook.stem}"
        files.append(File.generated(config, f"{name}.md", content=tutorial(notebook)))
    for picture in sorted(
        (WRITTEN / "images").glob("*.png")
    ):  # in place of the one in the repository
        uri = f"images/{picture.name}"
        before = files.get_file_from_path(uri)
        if before is not None:
            files.remove(before)
        files.append(File.generated(config, uri, abs_src_path=str(picture)))
    files.append(
        File.generated(
            config, "reference/cli.md", content=(WRITTEN / "cli.md").read_text(encoding="utf-8")
        )
    )
    files.append(File.generated(config, "reference/python.md", content=python_reference()))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changes))
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "contributing.md", content=contributing))
    files.append(File.generated(config, "decisions/README.md", content=decisions()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A link to a file of the repository that is no page goes to the repository; a link to a folder
    goes to its first page.

    Where the repository is not published, the file's path stands there instead of a link.
    """
    here, address = Path(page.file.src_uri).parent, repository()

    def target(match: re.Match[str]) -> str:
        words, middle, link, after = match.groups()
        before = f"[{words}{middle}"
        place = os.path.normpath(DOCS / here / link)
        inside = os.path.relpath(place, DOCS)
        if inside.startswith(".."):
            kind, path = "tree" if os.path.isdir(place) else "blob", os.path.relpath(place, ROOT)
            if address is None:
                return (
                    f"`{path}`"
                    if words.strip("`") in (path, Path(path).name)
                    else f"{words} (`{path}` in the repository)"
                )
            return f"{before}{address}/{kind}/main/{path}{after}"
        if os.path.isdir(place) and files.get_file_from_path(f"{inside}/README.md"):
            return f"{before}{os.path.relpath(inside, here)}/README.md{after}"
        return match.group()

    markdown = _LINK.sub(target, markdown)
    if page.file.src_uri == GLOSSARY:
        return re.sub(
            r"\*\*([A-Z][\w -]+)\*\*",
            lambda match: f"{match.group()}{{ #{_slug(match[1])} }}",
            markdown,
        )
    return link_terms(markdown, os.path.relpath(GLOSSARY, here))


def link_terms(markdown: str, glossary: str) -> str:
    """Link the first time that a page uses a term of its own to the glossary; code, headings,
    tables and links are left alone."""
    out, wanted, fenced = [], dict(TERMS), False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.lstrip().startswith(("#", "|", "```", "<", "!", "---", ":::")):
            line, wanted = _link(line, wanted, glossary)
        out.append(line)
    return "\n".join(out)


def _link(line: str, wanted: dict[str, str], glossary: str) -> tuple[str, dict[str, str]]:
    left = dict(wanted)
    for words, anchor in wanted.items():
        parts = re.split(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]*>|\*\*[^*]*\*\*)", line)
        for place in range(0, len(parts), 2):  # every second part is code, a link or bold
            found = re.search(rf"(?<![\w-])({words})(?![\w-])", parts[place])
            if found:
                link = f"[{found[1]}]({glossary}#{anchor}){{ .term }}"
                parts[place] = parts[place][: found.start()] + link + parts[place][found.end() :]
                line = "".join(parts)
                del left[words]
                break
    return line, left


def _slug(term: str) -> str:
    return term.lower().replace(" ", "-")


def python_reference() -> str:
    """Return the page on Python: every public name, documented where it is defined."""
    tree = ast.parse((ROOT / "src" / "layerscope" / "__init__.py").read_text(encoding="utf-8"))
    homes: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            for module, names in ast.literal_eval(node.value).items():
                homes.update(dict.fromkeys(names, module))
    lines = ["# Python", "", "`import layerscope` gives these functions and classes.", ""]
    for section, names in PUBLIC.items():
        lines += [f"## {section}", ""]
        lines += [f"::: layerscope.{homes[name]}.{name}" for name in names]
        lines.append("")
    return "\n".join(lines)


def decisions() -> str:
    """The list of decisions, by their own titles."""
    rows = []
    for page in sorted((DOCS / "decisions").glob("*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        rows.append(f"- [{title}]({page.name})")
    return (
        "# Why things are as they are\n\nOne short page per decision that a reader may wonder about.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def tutorial(notebook: Path) -> str:
    """A notebook as a page: its words, its code, and what the code printed and drew."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    address, links = repository(), [f"[Download the notebook]({notebook.name})"]
    if address is not None:
        inside = f"{address.removeprefix('https://github.com/')}/blob/main/docs/tutorials/{notebook.name}"
        links.insert(0, f"[Open in Colab](https://colab.research.google.com/github/{inside})")
    cells = [cell for cell in content["cells"] if "colab" not in cell["metadata"].get("tags", [])]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            if text.startswith("# "):
                parts.append(" · ".join(links))
        else:
            parts.append(f"```python\n{text}\n```")
            parts += [shown for output in cell["outputs"] if (shown := _output(output))]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        base64.b64decode(data["image/png"], validate=True)
        return f'<div class="output"><img alt="figure" src="data:image/png;base64,{data["image/png"].strip()}"></div>'
    if "text/html" in data:
        inner = "".join(data["text/html"])
        return '<div class="output">\n' + re.sub(r"\n\s*\n", "\n", inner) + "\n</div>"
    text = html.escape("".join(data.get("text/plain", ""))).rstrip()
    return f'<div class="output"><pre>{text}</pre></div>' if text else ""
