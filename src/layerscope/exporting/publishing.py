"""An exported folder gets its place: on this disk, whole or not at all, or on the hub.

To the hub go only files that the export recorded writing, and of these no tables, no map and no
manifest of a run: those of `improve` hold texts.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.core.files import read_json
from layerscope.core.options import describe_size
from layerscope.core.runs import MANIFEST, MARKER, folder_name
from layerscope.data.hub import hub_problem, quiet_bars
from layerscope.errors import ExportError, InvalidValueError, LayerscopeError, one_line
from layerscope.store import checked
from layerscope.store.atomic import explained, lock_beside, part_of, remove_parts, sync_folder
from layerscope.store.checked import (
    FILES,
    check_files,
    give_back,
    record_files,
    recorded_files,
    remove_recorded,
)

PRIVATE = (
    "The tables and `map.safetensors` here hold texts of that sample. If they are private, "
    "publish this folder with `layerscope export FOLDER --push`, which leaves them out, or improve "
    "with `--no-texts`."
)
_TABLES = (".csv", ".parquet", "map.safetensors")
_CARD = "README.md"
_PLACE = "path/to/this/folder"


def default_place(model: Any) -> Path:
    """Return the folder of an export for which the user names none.

    >>> default_place("org/name").as_posix()
    'exports/name'
    """
    name = model if isinstance(model, str | Path) else getattr(model, "name", type(model).__name__)
    return Path("exports") / folder_name(str(name))


def check_free(out: Path, overwrite: bool) -> None:
    """Raise unless the place is free, or holds an earlier export that may be overwritten."""
    if not out.exists():
        return
    problem = ""
    if not out.is_dir():
        problem = "is a file; an export needs a folder"
    elif out.samefile(Path()):  # another folder takes its place, and the shell would be nowhere
        problem = "is the current folder"
    elif any(out.iterdir()) and not overwrite:
        problem = "exists and is not empty; only overwrite=True replaces an earlier export"
    elif any(out.iterdir()) and out / "modules.json" not in recorded_files(out):
        problem = "holds no export of layerscope, and only such files are replaced"
    if problem:
        raise ExportError(f"{out} {problem}. Choose another out=, such as out='better'.")


@contextmanager
def published(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a scratch folder beside `out` that takes its place at the end.

    A second process is refused. Files in `out` that no export recorded writing are kept.
    """
    out = out.resolve()  # the target of a link is replaced, not the link
    aside = out.with_name(f"{out.name}.old")
    with lock_beside(out, "exporting"):
        with explained(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            for earlier in out.parent.glob(f".{glob.escape(aside.name)}.*.part"):
                if out.exists():  # an export was killed after it took the place of this one
                    give_back(remove_recorded(earlier), earlier, out)
                else:
                    os.rename(earlier, out)
            remove_parts(out.parent, of=(f".{out.name}",))  # of exports that were killed
            check_free(out, overwrite)  # another process may have written it meanwhile
            scratch = part_of(out)
            scratch.mkdir()
        try:
            with explained(out):
                yield scratch
                record_files(scratch)
                mode = (scratch / "modules.json").stat().st_mode
                for file in scratch.rglob("*.safetensors"):
                    file.chmod(mode)  # safetensors writes for one user only
                earlier = part_of(aside)
                if out.exists():
                    os.rename(out, earlier)
                os.rename(scratch, out)
                sync_folder(out.parent)
                give_back(remove_recorded(earlier), earlier, out)
        except ExportError as error:
            raise ExportError(f"{error} Nothing was written to {out}.") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True)
class Parcel:
    """The files of a folder that go to the hub, and those that stay."""

    folder: Path
    repo: str
    files: tuple[str, ...]
    stays: tuple[str, ...]
    public: bool = False

    def __str__(self) -> str:
        size = describe_size(sum((self.folder / name).stat().st_size for name in self.files))
        kind = "public: everybody can read it" if self.public else "private"
        stays = f" Not sent: {', '.join(self.stays)}." if self.stays else ""
        return (
            f"{size} of {self.folder} to the hub as {self.repo} ({kind}): {', '.join(self.files)}. "
            f"An earlier export there is replaced.{stays}"
        )


def pack(folder: str | Path, repo: str, public: bool = False) -> Parcel:
    """Return what would be sent; raise for a folder that is no whole export."""
    place = Path(folder)
    check_address(repo)
    facts = read_json(place / MARKER, error=ExportError) if (place / MARKER).is_file() else {}
    recorded = facts.get(FILES)
    if facts.get("kind") != "export" or not isinstance(recorded, dict):
        raise ExportError(
            f"{place} holds no export of layerscope: only such a folder is pushed (export and "
            "improve write one)."
        )
    for path, problem in check_files(place):
        if problem:
            raise ExportError(f"{path} is damaged ({problem}). Export it again before you push it.")
    sent = {MARKER}
    stays = []
    for path in sorted(file for file in place.rglob("*") if file.is_file()):
        name = path.relative_to(place).as_posix()
        is_private = name.endswith(_TABLES) or path.name == MANIFEST or path.is_symlink()
        if name in recorded and not is_private:
            sent.add(name)
        elif name != MARKER:
            stays.append(name)
    return Parcel(place, repo, tuple(sorted(sent)), tuple(stays), public)


def push(parcel: Parcel) -> str:
    """Send a parcel and return its address. The access token is the hub client's own.

    An existing repository must hold an export of layerscope, and be as private as was asked for.
    Files of that export which the new one lacks are removed.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    quiet_bars()
    check_token()
    api = HfApi(library_name="layerscope")
    facts = read_json(parcel.folder / MARKER, error=ExportError)
    recorded = {name: sha for name, sha in facts[FILES].items() if name in parcel.files}
    reason = str(facts.get("why") or "").replace(PRIVATE, "").strip()
    record = checked.with_checksum({**facts, "why": reason, FILES: recorded})
    files: dict[str, Any] = {name: parcel.folder / name for name in parcel.files}
    files[MARKER] = json.dumps(record, indent=2, ensure_ascii=False).encode()
    if _CARD in files:
        text = files[_CARD].read_text(encoding="utf-8")
        files[_CARD] = text.replace(PRIVATE, "").replace(_PLACE, parcel.repo).encode()
    try:
        earlier = _prepare_repository(api, parcel)
        commit = api.create_commit(
            parcel.repo,
            [
                *(CommitOperationDelete(name) for name in sorted(earlier.difference(files))),
                *(CommitOperationAdd(name, content) for name, content in files.items()),
            ],
            commit_message=f"Layer {facts['layer']}, exported with layerscope",
        )
    except LayerscopeError:
        raise
    except Exception as error:  # the client's, the network's and the hub's own
        reason = hub_problem(error) or one_line(str(error))[:300] or type(error).__name__
        raise ExportError(f"{parcel.repo} could not be pushed: {reason.rstrip('.')}.") from error
    return str(commit.repo_url)


def _prepare_repository(api: Any, parcel: Parcel) -> set[str]:
    """Make the repository or check the one that is there; return the files of the export in it."""
    from huggingface_hub.errors import RepositoryNotFoundError

    repo = parcel.repo
    try:
        present = api.model_info(repo)
    except RepositoryNotFoundError:
        api.create_repo(repo, private=not parcel.public)
        return set()
    names = {file.rfilename for file in present.siblings or ()} - {".gitattributes", _CARD}
    problem = ""
    if names and MARKER not in names:
        problem = "holds no export of layerscope. Choose another name."
    elif present.private == parcel.public:
        kind = "private" if present.private else "public"
        problem = f"is there and {kind}, and stays so: say public={not present.private}."
    if problem:
        raise ExportError(f"{repo} {problem}")
    if not names:
        return set()
    marker = api.hf_hub_download(repo, MARKER, revision=present.sha)
    files = read_json(Path(marker), error=ExportError).get(FILES)
    return names.intersection(files if isinstance(files, dict) else ())


def check_address(repo: str) -> None:
    """Raise for an invalid repository name."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
        is_valid = repo.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise InvalidValueError(
            f"push= takes a name on the hub with its owner, such as user/name, not {repo!r}."
        )


def check_token() -> None:
    """Raise if nobody is logged in to the hub."""
    from huggingface_hub import get_token

    if not get_token():
        raise ExportError(
            "pushing to the hub needs an access token. Log in (`hf auth login`), or set HF_TOKEN."
        )
