"""Tutorials: plain scripts in the percent format, run cell by cell and written as notebooks with
what they printed and drew.

    python docs/site/tutorials.py                       # all of them, with the real models: some minutes
    python docs/site/tutorials.py read-a-profile
    python docs/site/tutorials.py --words               # take over changed words; the results stay

A cell starts with `# %%`; words with `# %% [markdown]`. `tests/docs/test_tutorials.py` runs the
same cells on tiny models, and fails where a notebook is not made from its script.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "tutorials"
_HEAD = re.compile(r"^# %%(?P<words> \[markdown\])?(?: tags=(?P<tags>\[.*\]))?\s*$")


@dataclass
class Cell:
    """One cell: words or code."""

    kind: str
    text: str
    tags: list[str] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)


def scripts() -> list[Path]:
    """Every tutorial, by name."""
    return sorted(FOLDER.glob("*.py"))


def read(script: Path) -> list[Cell]:
    """The cells of a script."""
    cells: list[Cell] = []
    for line in script.read_text(encoding="utf-8").splitlines():
        head = _HEAD.match(line)
        if head:
            cells.append(
                Cell("markdown" if head["words"] else "code", "", json.loads(head["tags"] or "[]"))
            )
        elif cells:
            cells[-1].text += (
                re.sub(r"^# ?", "", line) if cells[-1].kind == "markdown" else line
            ) + "\n"
    for cell in cells:
        cell.text = cell.text.strip("\n")
    return cells


def run(cells: list[Cell], name: str) -> None:
    """Run the code cells in one namespace; what they print and what their last line gives become
    their outputs."""
    namespace: dict[str, Any] = {"__name__": "__tutorial__"}
    for number, cell in enumerate(cells):
        if cell.kind == "code" and "colab" not in cell.tags:
            cell.outputs = _run(cell.text, namespace, f"{name}, cell {number}")


def _run(code: str, namespace: dict[str, Any], where: str) -> list[dict[str, Any]]:
    tree = ast.parse(code, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), namespace)  # noqa: S102
        value = None
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), where, "eval"), namespace)  # noqa: S307
    out: list[dict[str, Any]] = []
    if printed.getvalue():
        out.append(
            {
                "output_type": "stream",
                "name": "stdout",
                "text": printed.getvalue().splitlines(keepends=True),
            }
        )
    if value is not None:
        out.append({"output_type": "display_data", "metadata": {}, "data": shown(value)})
    return out


def shown(value: Any) -> dict[str, Any]:
    """A value as a notebook shows it: a chart, a table or text."""
    if hasattr(value, "mark_type") or hasattr(value, "to_chart_dict") or hasattr(value, "to_url"):
        drawn = io.BytesIO()
        value.save(drawn, format="png", ppi=110)
        return {
            "image/png": base64.b64encode(drawn.getvalue()).decode(),
            "text/plain": ["a chart"],
        }
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return data


def notebook(cells: list[Cell]) -> dict[str, Any]:
    """A notebook of format 4.5."""
    out = []
    for number, cell in enumerate(cells):
        facts: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": f"cell-{number}",
            "metadata": {"tags": cell.tags} if cell.tags else {},
        }
        facts["source"] = cell.text.splitlines(keepends=True)
        if cell.kind == "code":
            facts |= {"execution_count": None, "outputs": cell.outputs}
        out.append(facts)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": out, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def refresh(script: Path, cells: list[Cell]) -> bool:
    """Take the results of the notebook that is there, if its code does what the script's does; then
    only words or the layout of lines were changed."""
    target = script.with_suffix(".ipynb")
    if not target.exists():
        return False
    old = [
        cell
        for cell in json.loads(target.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    new = [cell for cell in cells if cell.kind == "code"]
    before = [ast.dump(ast.parse("".join(cell["source"]))) for cell in old]
    if before != [ast.dump(ast.parse(cell.text)) for cell in new] or not any(
        cell["outputs"] for cell in old
    ):
        return False
    for cell, was in zip(new, old, strict=True):
        cell.outputs = was["outputs"]
    return True


def main(names: list[str]) -> None:
    """Run tutorials and write their notebooks; with `--words` only those whose words alone were
    changed, without running them."""
    home, words = Path.cwd(), "--words" in names
    names = [name for name in names if name != "--words"]
    for script in scripts():
        if names and script.stem not in names:
            continue
        if words:
            cells = read(script)
            if refresh(script, cells):
                content = json.dumps(notebook(cells), indent=1, ensure_ascii=False)
                script.with_suffix(".ipynb").write_text(content + "\n", encoding="utf-8")
            else:
                print(f"{script.stem} must be run: its code is not the notebook's")
            continue
        start, cells = time.perf_counter(), read(script)
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)  # what a tutorial writes does not stay
            try:
                run(cells, script.stem)
            finally:
                os.chdir(home)
        target = script.with_suffix(".ipynb")
        target.write_text(
            json.dumps(notebook(cells), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        print(
            f"{target.name}: {target.stat().st_size / 1000:.0f} kB, {time.perf_counter() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
