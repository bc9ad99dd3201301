"""Add generated pages and links to the site; mkdocs calls these functions.

Generated are the tutorials, the pages on the command line and on Python, and the list of decisions.
Nothing here needs torch: `make docs` writes the page on the command line in layerscope's own
environment.
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
    """Return the address of the published source, or None before its publication."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return (
        str(facts["project"]["urls"]["Source"])
        if facts["tool"]["layerscope"]["published"]
        else None
    )


def on_config(config: Any) -> Any:
    """Add the repository's address, which pyproject.toml defines, as a link."""
    # The theme's own box would request the number of stars from GitHub.
    address = repository()
    if address is not None:
        config.extra["social"] = [
            {"icon": "fontawesome/brands/github", "link": address, "name": "Source"}
        ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for notebook in sorted((DOCS / "tutorials").glob("*.ipynb")):
        name = f"tutorials/{notebook.stem}"
        files.append(File.generated(config, f"{name}.md", content=tutorial(notebook)))
    for picture in sorted((WRITTEN / "images").glob("*.png")):
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
    """Return a page's text with its links changed for the site.

    A link to a file that is no page leads to the repository; before its publication, the file's
    path replaces the link. A link to a folder leads to the folder's first page. Terms are linked to
    the glossary.
    """
    folder = Path(page.file.src_uri).parent
    address = repository()

    def target(match: re.Match[str]) -> str:
        words, middle, link, after = match.groups()
        before = f"[{words}{middle}"
        place = os.path.normpath(DOCS / folder / link)
        inside = os.path.relpath(place, DOCS)
        if inside.startswith(".."):
            kind = "tree" if os.path.isdir(place) else "blob"
            path = os.path.relpath(place, ROOT)
            if address is None:
                if words.strip("`") in (path, Path(path).name):
                    return f"`{path}`"
                if match.string[: match.start()].endswith("("):
                    return f"{words}: `{path}`"
                return f"{words} (`{path}` in the repository)"
            return f"{before}{address}/{kind}/main/{path}{after}"
        if os.path.isdir(place) and files.get_file_from_path(f"{inside}/README.md"):
            return f"{before}{os.path.relpath(inside, folder)}/README.md{after}"
        return match.group()

    markdown = _LINK.sub(target, markdown)
    if page.file.src_uri == GLOSSARY:
        return re.sub(
            r"\*\*([A-Z][\w -]+)\*\*",
            lambda match: f"{match.group()}{{ #{_slug(match[1])} }}",
            markdown,
        )
    return link_terms(markdown, os.path.relpath(GLOSSARY, folder))


def link_terms(markdown: str, glossary: str) -> str:
    """Return a page's text with the first use of each term linked to the glossary.

    Code, headings, tables and links stay as they are.
    """
    lines = []
    terms = dict(TERMS)
    is_code = False
    for line in markdown.split("\n"):
        is_code ^= line.lstrip().startswith("```")
        if not is_code and not line.lstrip().startswith(("#", "|", "```", "<", "!", "---", ":::")):
            line, terms = _link(line, terms, glossary)
        lines.append(line)
    return "\n".join(lines)


def _link(line: str, terms: dict[str, str], glossary: str) -> tuple[str, dict[str, str]]:
    """Return a line with links to the glossary, and the terms that have no link yet."""
    unlinked = dict(terms)
    for pattern, anchor in terms.items():
        pieces = re.split(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]*>|\*\*[^*]*\*\*)", line)
        for i in range(0, len(pieces), 2):  # every second piece is code, a link or bold
            match = re.search(rf"(?<![\w-])({pattern})(?![\w-])", pieces[i])
            if match:
                link = f"[{match[1]}]({glossary}#{anchor}){{ .term }}"
                pieces[i] = pieces[i][: match.start()] + link + pieces[i][match.end() :]
                line = "".join(pieces)
                del unlinked[pattern]
                break
    return line, unlinked


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
    """Return the page that lists the decisions."""
    rows = []
    for page in sorted((DOCS / "decisions").glob("*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        rows.append(f"- [{title}]({page.name})")
    title = "# Why things are as they are"
    return "\n".join([title, "", "One short page for each decision.", "", *rows]) + "\n"


def tutorial(notebook: Path) -> str:
    """Return a notebook as a page, with what its code printed and drew."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    links = [f"[Download the notebook]({notebook.name})"]
    address = repository()
    if address is not None:
        path = f"{address.removeprefix('https://github.com/')}/blob/main/docs/tutorials"
        colab = f"https://colab.research.google.com/github/{path}/{notebook.name}"
        links.insert(0, f"[Open in Colab]({colab})")
    cells = [cell for cell in content["cells"] if "colab" not in cell["metadata"].get("tags", [])]
    blocks = []
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(text)
            if text.startswith("# "):
                blocks.append(" · ".join(links))
        else:
            blocks.append(f"```python\n{text}\n```")
            blocks += [block for output in cell["outputs"] if (block := _output(output))]
    return "\n\n".join(blocks) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return an output of a cell as text for the page."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        picture = data["image/png"].strip()
        base64.b64decode(picture, validate=True)
        image = f'<img alt="figure" src="data:image/png;base64,{picture}">'
        return f'<div class="output">{image}</div>'
    if "text/html" in data:
        inner = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
        return f'<div class="output">\n{inner}\n</div>'
    text = html.escape("".join(data.get("text/plain", ""))).rstrip()
    return f'<div class="output"><pre>{text}</pre></div>' if text else ""
