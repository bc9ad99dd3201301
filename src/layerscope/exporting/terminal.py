"""Exports and measurements in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from layerscope.exporting.job import Exported
from layerscope.exporting.measuring.bench import Bench


def print_export(done: Exported) -> None:
    """Where it was cut, what it scored, and how it was checked."""
    console = Console(highlight=False)
    facts = done.facts
    base, blocks, v = facts["base"], facts["blocks"], facts["verification"]
    filler = " + 1 of zeros" if blocks["filler"] else ""
    console.print(f"[bold]{base['name']}[/] at layer {facts['layer']} of {base['n_blocks']}, read as {facts['readout']}")
    console.print(
        f"{blocks['kept']}{filler} of {blocks['of']} blocks · {facts['parameters'] / 1e6:.1f} M parameters of "
        f"{base['parameters'] / 1e6:.1f} M · {facts['bytes'] / 2**20:.0f} MB · texts cut to {facts['max_length']} tokens"
    )
    console.print(f"{' → '.join(facts['modules'])} · state: {facts['state']} · licence: {facts['licence']}", markup=False)
    evidence = facts.get("evidence") or {"scores": [], "notes": []}
    for row in evidence["scores"]:
        told = f"{row['task']}: {row['score']:.2f}, last layer {row['last']:.2f}"
        if row["ci_low"] is not None and row["gain"]:
            told += f", gain {row['gain']:+.2f} ({row['ci_low']:+.2f} to {row['ci_high']:+.2f})"
        if row["default_last"] is not None:
            told += f"; last layer by mean {row['default_last']:.2f}"
        console.print(told)
    for graph in facts.get("onnx") or []:
        speed = f"{graph['texts_per_s']:.1f} texts/s, torch {graph['torch_texts_per_s']:.1f}"
        console.print(
            f"{graph['file']}: {graph['bytes'] / 2**20:.0f} MB · cosine distance to torch ≤ {graph['cosine_distance']:.1e} "
            f"(mean {graph['mean_cosine_distance']:.1e}) · {speed}"
        )
    console.print(
        f"[green]verified[/] in a fresh process: cosine distance ≤ {v['cosine_distance']:.1e} on {v['texts']} texts "
        f"({v['cut_texts']} cut), AutoModel's states within {v['state_error']:.1e}"
    )
    if v["cut_distance"] is not None and v["cut_distance"] > v["tolerance"]:
        evaluated, now = facts["evaluated_max_length"], facts["max_length"]
        told = f"are read up to {now} tokens here" if now > evaluated else "lose a token at the template's end"
        console.print(f"[yellow]note[/] texts too long for the {evaluated} tokens of an evaluation {told}")
    for note in evidence["notes"]:
        console.print(f"[yellow]note[/] {note}")


def print_bench(found: Bench) -> None:
    """One row per figure, the ratio last."""
    console = Console(highlight=False)
    one, other = found.models[:2]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for name in (one["name"], other["name"], "ratio"):
        table.add_column(name, justify="right")
    for row in found.rows():
        table.add_row(*row)
    console.print(table)
    console.print(f"{found.threads} threads, {found.machine}; medians of turns, each model in its own process")
