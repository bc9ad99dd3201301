"""The command `layerscope-zoo`: list the entries with a short name, and download them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from layerscope.catalogue import Entry
from layerscope.core.options import split_names
from layerscope.data.corpus import CORPORA
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.evaluation.tasks import TASKS, resolve_tasks
from layerscope.models import MODELS
from layerscope.models.source import resolve
from layerscope_zoo.fashion_mnist import FASHION_MNIST
from layerscope_zoo.origins import ACCEPT_VARIABLE


def _entries() -> dict[str, Entry]:
    return {**TASKS.all(), **MODELS.all(), **CORPORA.all(), FASHION_MNIST.name: FASHION_MNIST}


def list_entries(as_json: bool) -> None:
    """Print the name, kind, license and state of every model, corpus and task."""
    rows = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "summary": entry.summary,
            "license": entry.license,
            "cached": entry.is_cached(),
        }
        for entry in _entries().values()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        state = "cached" if row["cached"] else "not cached yet"
        print(f"{row['name']}  {row['kind']}, {row['license']} · {state}\n    {row['summary']}")


def fetch(names: Sequence[str], tasks: str, accept_license: bool, as_json: bool) -> None:
    """Download entries, hub models and the data of tasks, after a check of all names."""
    if not names and not tasks:
        raise LayerscopeError(
            "nothing was named: give a model, a corpus or a task to fetch, or --tasks."
        )
    entries = _entries()
    for name in names:
        if name not in entries and "/" not in name:
            raise UnknownNameError("model, corpus or task", name, entries)
    specs = resolve_tasks(split_names(tasks)) if tasks else []
    if accept_license:
        accepted = [*split_names(os.environ.get(ACCEPT_VARIABLE, "")), *names]
        os.environ[ACCEPT_VARIABLE] = ",".join(accepted)
    fetched: dict[str, str] = {}
    for name in names:
        path = entries[name].fetch() if name in entries else resolve(name).path
        fetched[name] = str(path)
        if not as_json:
            print(f"{name}: {fetched[name]}")
    for spec in specs:
        fetched[spec.name] = f"{spec.facts()['items']} items"
        if not as_json:
            print(f"{spec.name}: {fetched[spec.name]}")
    if as_json:
        print(json.dumps(fetched))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="layerscope-zoo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="list models, corpora, image sets and tasks")
    fetching = commands.add_parser("fetch", help="download, so that later runs need no network")
    fetching.add_argument("names", nargs="*", help="short names, or hub model ids (org/name)")
    fetching.add_argument(
        "--tasks", default="", help="also the data of these tasks: paper, small, or names of mteb"
    )
    fetching.add_argument(
        "--accept-license",
        action="store_true",
        help="accept the licenses of the named items, if their publishers ask for that",
    )
    for command in (listing, fetching):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 1."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "list":
            list_entries(options.json)
        else:
            fetch(options.names, options.tasks, options.accept_license, options.json)
    except LayerscopeError as error:
        print(f"layerscope-zoo: {error}", file=sys.stderr)
        sys.exit(1)
