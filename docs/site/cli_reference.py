"""Write the page of the command line from the app itself: `python docs/site/cli_reference.py
build/docs/cli.md`."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli.app import EXAMPLES, app, load_commands


def page() -> str:
    """Every command in the order of its story, with its options and an example."""
    load_commands()
    root: Any = typer.main.get_command(app)
    out = [
        "# Command line",
        "",
        "Written from the program itself. `layerscope COMMAND --help` prints the same.",
        "",
    ]
    out += ["| command | what it does |", "|---|---|"]
    shown: dict[str, list[str]] = {}
    for info in app.registered_commands:
        shown.setdefault(str(info.rich_help_panel), []).append(str(info.name))
    for names in shown.values():
        out += [f"| [`{name}`](#{name}) | {_first(root.commands[name])} |" for name in names]
    for panel, names in shown.items():
        if names:
            out += ["", f"## {panel}", ""]
        for name in names:
            out += _command(root.commands[name], f"layerscope {name}", 3, EXAMPLES.get(name))
    return "\n".join(out) + "\n"


def _command(command: Any, path: str, level: int, example: str | None = None) -> list[str]:
    out = [f"{'#' * level} {path.removeprefix('layerscope ')}", "", _words(command.help), ""]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [
        one
        for one in command.params
        if one.param_type_name == "option" and one.name != "help" and not one.hidden
    ]
    usage = " ".join(_metavar(one) for one in arguments)
    inner = getattr(command, "commands", {})
    out += [
        "```text",
        f"{path} {usage}{' COMMAND' if inner else ''}{' [OPTIONS]' if options else ''}",
        "```",
        "",
    ]
    example = example or _example(command)
    if example:
        out += ["```bash", *(line.strip() for line in example.strip().splitlines()), "```", ""]
    rows = [(f"`{_metavar(one)}`", one, "") for one in arguments]
    rows += [
        (", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts]), one, _default(one))
        for one in options
    ]
    if rows:
        out += ["| option | what it is | default |", "|---|---|---|"]
        out += [
            f"| {name} | {_words(getattr(one, 'help', '') or '', row=True)} | {default} |"
            for name, one, default in rows
        ]
        out.append("")
    for name, sub in inner.items():
        out += _command(sub, f"{path} {name}", level + 1)
    return out


def _metavar(argument: Any) -> str:
    """An argument as the usage line has it: [RUN]..."""
    if argument.metavar:
        return str(argument.metavar)
    name = argument.name.upper() if argument.required else f"[{argument.name.upper()}]"
    return f"{name}..." if argument.nargs == -1 else name


def _example(command: Any) -> str | None:
    text = getattr(command, "epilog", None) or ""
    return text.split("Example:", 1)[1].strip() if "Example:" in text else None


def _default(option: Any) -> str:
    value = option.default
    if (
        value is None
        or value == ""
        or value is False
        or value == []
        or callable(value)
        or "(default:" in (option.help or "")
    ):
        return ""
    if type(value).__name__ == "Sentinel":  # click's mark of an option without a default
        return ""
    return f"`{value}`"


def _first(command: Any) -> str:
    return _words((command.help or "").split("\n")[0], row=True)


def _words(text: str | None, row: bool = False) -> str:
    """The help as the page writes it: the app's markup taken out, nothing taken for HTML."""
    plain = re.sub(r"\[/?(?:bold|dim|yellow|green|cyan|italic)\]", "", text or "").strip()
    plain = re.sub(r"(?<!`)<(\w+)>(?!`)", lambda match: html.escape(match.group()), plain)
    return re.sub(r"\s+", " ", plain).replace("|", "\\|") if row else plain


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
    print(f"{target}: {len(target.read_text(encoding='utf-8').splitlines())} lines")
