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
    """Return the page: every command with its options and an example."""
    load_commands()
    root: Any = typer.main.get_command(app)
    out = [
        "# Command line",
        "",
        "Written from the program itself. `layerscope COMMAND --help` prints the same.",
        "",
    ]
    out += ["| command | use |", "|---|---|"]
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
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [
        param
        for param in command.params
        if param.param_type_name == "option" and param.name != "help" and not param.hidden
    ]
    usage = " ".join(_metavar(argument) for argument in arguments)
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
    rows = [(f"`{_metavar(argument)}`", argument, "") for argument in arguments]
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        rows.append((names, option, _default(option)))
    if rows:
        out += ["| option | meaning | default |", "|---|---|---|"]
        out += [
            f"| {name} | {_words(getattr(param, 'help', '') or '', row=True)} | {default} |"
            for name, param, default in rows
        ]
        out.append("")
    for name, sub in inner.items():
        out += _command(sub, f"{path} {name}", level + 1)
    return out


def _metavar(argument: Any) -> str:
    """Return an argument as the usage line shows it, such as [RUN]..."""
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
    """Return a help text without the app's markup and with `<` escaped."""
    plain = re.sub(r"\[/?(?:bold|dim|yellow|green|cyan|italic)\]", "", text or "").strip()
    plain = re.sub(r"(?<!`)<(\w+)>(?!`)", lambda match: html.escape(match.group()), plain)
    return re.sub(r"\s+", " ", plain).replace("|", "\\|") if row else plain


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
    print(f"{target}: {len(target.read_text(encoding='utf-8').splitlines())} lines")
