"""Options that several commands share, said once."""

from __future__ import annotations

import typer

MODEL = typer.Argument(..., help="Catalogue name, hub id (org/name@revision), folder, or .gguf file.")
DEVICE = typer.Option(None, "--device", help="cpu, cuda or mps. (default: cuda if there is one)")
DEVICE_MAP = typer.Option(None, "--device-map", help="auto: spread a large model over several GPUs.")
DTYPE = typer.Option("float32", "--dtype", help="float32, bfloat16, float16, or auto (the checkpoint's).")
REVISION = typer.Option(None, "--revision", help="Revision of a hub model.")
FAMILY = typer.Option(None, "--family", help="Read the model as this family.")
BIDIRECTIONAL = typer.Option(False, "--bidirectional", help="Let a decoder attend both ways (LLM2Vec).")
ADAPTER = typer.Option([], "--adapter", help="PEFT adapter to merge, folder or hub id; repeatable.")
BATCH_SIZE = typer.Option(None, "--batch-size", help="Most texts per batch. (default: found automatically)")
OFFLINE = typer.Option(False, "--offline", help="Download nothing; fail at once if something is missing.")
OVERWRITE = typer.Option(False, "--overwrite", help="Replace another run in the same folder.")
AS_JSON = typer.Option(False, "--json", help="Print a summary as JSON instead of tables.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress bar and no tables.")
ENGINE = typer.Option("local", "--engine", help="local (this process), or ray (the workers of a Ray cluster).")
ADDRESS = typer.Option(None, "--address", help="Of the Ray cluster: HOST:6379, or auto on one of its machines. (default: found)")
ENGINE_WORKERS = typer.Option(
    None, "--workers", "--engine-workers", help="Ray workers, each with the model. (default: one per GPU, or per core)"
)
ENGINE_WORKERS_ONLY = typer.Option(
    None, "--engine-workers", help="Ray workers, each with the model. (default: one per GPU, or per core)"
)
GPUS_PER_WORKER = typer.Option(None, "--gpus-per-worker", help="GPUs of a Ray worker. (default: 1 where there are any)")
