"""What is installed beside layerscope, as a CycloneDX bill of materials: name, version, license, and what needs what.

python tests/packaging/sbom.py build/sbom.json     # of the environment whose python runs this; needs nothing but it
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any


def plain(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(one: Distribution) -> dict[str, Any]:
    name, told = plain(one.metadata["Name"]), one.metadata.get("License-Expression") or one.metadata.get("License") or ""
    found = {"type": "library", "name": name, "version": one.version, "purl": f"pkg:pypi/{name}@{one.version}"}
    license = next(iter(told.strip().splitlines()), "")[:80]
    return {**found, "bom-ref": found["purl"], **({"licenses": [{"license": {"name": license}}]} if license else {})}


def bill() -> dict[str, Any]:
    """The bill of this environment."""
    there = {plain(one.metadata["Name"]): one for one in distributions() if one.metadata["Name"]}
    parts = {name: _component(one) for name, one in sorted(there.items())}
    needs = {
        name: sorted({plain(re.split(r"[^\w.-]", need, maxsplit=1)[0]) for need in one.requires or () if "extra ==" not in need})
        for name, one in there.items()
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": parts.get("layerscope", {})},
        "components": [part for name, part in parts.items() if name != "layerscope"],
        "dependencies": [
            {"ref": part["bom-ref"], "dependsOn": [parts[need]["bom-ref"] for need in needs[name] if need in parts]}
            for name, part in parts.items()
        ],
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
