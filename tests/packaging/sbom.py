"""What is installed beside layerscope, as a CycloneDX bill of materials: name, version, license,
and what needs what.

    python tests/packaging/sbom.py build/sbom.json constraints.txt     # of the environment whose python runs this

With a file of constraints it exits with 1 where something that is installed is not pinned there: a
new release of a package that nobody named must not reach a user unseen.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any


def plain(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(one: Distribution) -> dict[str, Any]:
    name, told = (
        plain(one.metadata["Name"]),
        one.metadata.get("License-Expression") or one.metadata.get("License") or "",
    )
    found = {
        "type": "library",
        "name": name,
        "version": one.version,
        "purl": f"pkg:pypi/{name}@{one.version}",
    }
    license = next(iter(told.strip().splitlines()), "")[:80]
    return {
        **found,
        "bom-ref": found["purl"],
        **({"licenses": [{"license": {"name": license}}]} if license else {}),
    }


def bill() -> dict[str, Any]:
    """The bill of this environment."""
    there = {plain(one.metadata["Name"]): one for one in distributions() if one.metadata["Name"]}
    parts = {name: _component(one) for name, one in sorted(there.items())}
    needs = {
        name: sorted(
            {
                plain(re.split(r"[^\w.-]", need, maxsplit=1)[0])
                for need in one.requires or ()
                if "extra ==" not in need
            }
        )
        for name, one in there.items()
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": parts.get("layerscope", {})},
        "components": [part for name, part in parts.items() if name != "layerscope"],
        "dependencies": [
            {
                "ref": part["bom-ref"],
                "dependsOn": [parts[need]["bom-ref"] for need in needs[name] if need in parts],
            }
            for name, part in parts.items()
        ],
    }


_OWN = (
    "layerscope",
    "layerscope-zoo",
    "layerscope-gpu",
    "layerscope-paper",
    "layerscope-media",
    "pip",
)


def pins(text: str) -> dict[str, str]:
    """The versions that a file of constraints names."""
    return {
        plain(name): version
        for name, version in re.findall(r"^([\w.-]+)==([\w.+]+)$", text, re.MULTILINE)
    }


def unpinned(constraints: str, there: Iterable[Distribution]) -> list[str]:
    """What is there and is not pinned, or is another version than the pinned one.

    A package that is there may also ask for one exact version, as torch does for CUDA's."""
    found = {plain(one.metadata["Name"]): one for one in there if one.metadata["Name"]}
    wanted = pins(constraints)
    for need in (need for one in found.values() for need in one.requires or ()):
        exact = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?==\s*([\w.]+)\)?\s*(?:;|$)", need)
        if exact:
            wanted.setdefault(plain(exact[1]), exact[2])
    odd = []
    for name, one in sorted(found.items()):
        version = one.version.split("+")[0]  # torch's build for CPUs is 2.13.0+cpu
        if name not in _OWN and wanted.get(name) != version:
            odd.append(f"{name} {version} (pinned: {wanted.get(name, 'no version')})")
    return odd


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
    if (
        left := unpinned(Path(sys.argv[2]).read_text(encoding="utf-8"), distributions())
        if len(sys.argv) > 2
        else []
    ):
        sys.exit("constraints.txt does not pin what is installed: " + ", ".join(left))
