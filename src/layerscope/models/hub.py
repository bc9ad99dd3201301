"""Model files from the Hugging Face hub, or from its local cache."""

from __future__ import annotations

from pathlib import Path

from layerscope.errors import LayerscopeError, ModelError, OfflineError

_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
# Subfolders hold other formats; consolidated weights are a second copy of the same ones.
_NOT = ["*/*", "consolidated*", "*.fp16.*", "*.onnx"]


def snapshot(repo: str, revision: str | None, offline: bool, *, pickles: bool = False, code: bool = False) -> tuple[Path, str]:
    """The local folder of a hub repository and its commit; only looked up, not downloaded, when `offline`."""
    from huggingface_hub import snapshot_download

    patterns = [*_FILES, *(["*.bin"] if pickles else []), *(["*.py"] if code else [])]
    try:
        folder = Path(
            snapshot_download(repo, revision=revision, local_files_only=offline, allow_patterns=patterns, ignore_patterns=_NOT)
        )
    except Exception as error:
        raise _explain(error, repo, revision, offline) from error
    return folder, folder.name


def _explain(error: Exception, repo: str, revision: str | None, offline: bool) -> LayerscopeError:
    """One clear error from the many that a download can raise."""
    from huggingface_hub import errors

    shown = f"{repo}@{revision}" if revision else repo
    if offline or isinstance(error, errors.OfflineModeIsEnabled):
        return OfflineError(
            f"{shown} is not in the local hub cache, and downloads are off. Load it once while online, "
            "or pass the path of a folder that holds it."
        )
    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"{shown} is gated: accept its terms on the hub and log in (`hf auth login`), then try again.")
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelError(f"the hub has {repo}, but no revision {revision!r}. Check the branch, tag or commit.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(f"the hub has no model {repo!r}, or it is private. Check the spelling, or log in.")
    if isinstance(error, errors.HFValidationError):
        return ModelError(f"{shown!r} is not a valid hub id: {error}.")
    detail = next(iter(str(error).strip().splitlines()), "")[:200]
    return ModelError(
        f"{shown} could not be fetched from the hub ({type(error).__name__}: {detail}) and is "
        "not in the local hub cache; no such folder exists either. Check the network, or pass the path of a folder."
    )
