"""The fenced blocks of the documentation, and the checks of each kind.

- `python`, and commands of layerscope in `bash` and `console`: run, block after block of a page, in
  one folder and one namespace,
  in a sandbox with tiny models (`sandbox.py`). A block after a comment `<!-- not run: reason -->`
  is compiled or parsed
  instead; the names that it takes from layerscope must exist. A Python block with a title is a file
  (`test_extend.py`).
- Every command is also parsed by the app itself (options, arguments, names of commands); scripts,
  make targets and extras must
  exist. Commands of other programs are not run, nor are those that `beyond` gives a reason for.
- `toml` and `yaml`: parsed.
- `text`, `csv`, `json`: output or data, not code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("python", "bash", "console", "toml", "yaml", "text", "csv", "json")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<more>.*)$")
_MARK = re.compile(r"<!-- not run: (?P<reason>.+) -->")
_HUB = ("EleutherAI", "McGill-NLP", "Qwen", "apple", "facebook", "intfloat", "meta-llama", "openai")


@dataclass(frozen=True)
class Block:
    """One fenced block. `reason` says why it is not run, where a comment before it does."""

    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    title: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page: those of the folder `docs`, and the front files of the repository."""
    front = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*front, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks: list[Block] = []
    start = 0
    fence = None
    mark = None
    for number, line in enumerate(lines, 1):
        match = _FENCE.match(line)
        if fence is None and match:
            start = number
            fence = match
            above = next((text for text in reversed(lines[: number - 1]) if text.strip()), "")
            mark = _MARK.search(above)
        elif fence is not None and match and not match["language"]:
            width = len(fence["indent"])
            text = "\n".join(text[width:] for text in lines[start : number - 1])
            reason = mark["reason"] if mark else ""
            title = re.search(r'title="([^"]+)"', fence["more"])
            blocks.append(
                Block(
                    str(page.relative_to(ROOT)),
                    start,
                    fence["language"],
                    text,
                    reason,
                    title[1] if title else "",
                )
            )
            fence = None
    if fence is not None:
        raise ValueError(f"{page}:{start}: a block without an end")
    return blocks


def all_blocks() -> list[Block]:
    """Return the blocks of every page."""
    return [block for page in pages() for block in blocks_of(page)]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a block as words, without comments; a backslash joins lines."""
    text = re.sub(
        r"\\\n\s*",
        lambda match: "" if match.start() and text_glued(block.text, match) else " ",
        block.text,
    )
    for line in text.splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        words = shlex.split(line, comments=True)
        if words:
            yield words


def text_glued(text: str, match: re.Match[str]) -> bool:
    """Return whether a word continues in the next line: no blank stands beside the backslash."""
    return not text[match.start() - 1].isspace() and match.group().endswith("\n")


def beyond(words: list[str]) -> str | None:
    """Return the reason why a command cannot run in the sandbox, or None."""
    if words[0] != "layerscope":
        return "a program of others, or a script that takes minutes"
    for word in words[1:]:
        if re.fullmatch(r"[A-Z]{2,}…?|…", word):
            return f"{word} is to be filled in"
        if word.split("/")[0] in _HUB:
            return f"{word} is on the hub"
        if word.split(":")[0] == "ray":
            return "it starts a cluster"
    return None
