"""`layerscope export`: a layer of a model as a folder that sentence-transformers loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.errors import LayerscopeError


@app.command("export")
def export_command(
    model: str = shared.MODEL,
    layer: str | None = typer.Option(
        None, "--layer", "-l", help="Layer to read; -1: the last. (default: the best of --from-run)"
    ),
    readout: str | None = typer.Option(
        None, "--readout", help="template/pooling/norm/sink/centering. (default: the best of --from-run, or plain/mean/applied)"
    ),
    from_run: Path | None = typer.Option(
        None,
        "--from-run",
        help="Folder of a profile or an evaluation, or a file of `select --json`: chooses the layer and gives the evidence.",
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder to write."),
    center_on: str | None = typer.Option(None, "--center-on", help="Corpus or file of texts whose mean is subtracted."),
    max_length: int | None = typer.Option(
        None, "--max-length", help="Cut texts to this many tokens. (default: the run's, or 256)"
    ),
    normalize: bool | None = typer.Option(
        None, "--normalize/--no-normalize", help="Scale vectors to length 1. (default: as the run or the model's pipeline does)"
    ),
    formats: list[str] = typer.Option(
        [], "--format", help="Also write this format; may be repeated. (onnx, or an installed one)"
    ),
    onnx: bool = typer.Option(False, "--onnx", help="Add an ONNX graph, pooling included: short for --format onnx."),
    quantize: str | None = typer.Option(None, "--quantize", help="int8: add a smaller ONNX graph."),
    bench: bool = typer.Option(False, "--bench", help="Measure it against the whole model; the figures go into the card."),
    dtype: str = shared.DTYPE,
    device: str | None = shared.DEVICE,
    revision: str | None = shared.REVISION,
    family: str | None = shared.FAMILY,
    bidirectional: bool = shared.BIDIRECTIONAL,
    adapter: list[str] = shared.ADAPTER,
    offline: bool = shared.OFFLINE,
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an earlier export in the same folder."),
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Cut a model at a layer and save it as a sentence-transformers folder, verified in a fresh process."""
    from layerscope.exporting import export

    done = export(
        model,
        _layer(layer),
        readout=readout,
        out=out,
        from_run=from_run,
        center_on=center_on,
        max_length=max_length,
        normalize=normalize,
        formats=formats,
        onnx=onnx,
        quantize=quantize,
        bench=bench,
        overwrite=overwrite,
        offline=offline,
        model_options={
            "dtype": dtype,
            "device": device,
            "revision": revision,
            "family": family,
            "bidirectional": bidirectional,
            "adapters": tuple(adapter),
        },
    )
    if as_json:
        print(json.dumps({"out": str(done.path), **done.facts}, indent=2, ensure_ascii=False))
    elif not quiet:
        from layerscope.exporting.describing import print_export

        print_export(done.facts)
        print(f"Written to {out}: open README.md there, or SentenceTransformer({str(out)!r})", file=sys.stderr)


def _layer(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise LayerscopeError(f"--layer takes a whole number, or auto with --from-run, not {text!r}.") from None
