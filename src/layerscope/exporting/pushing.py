"""`export --push`: an exported folder on the Hugging Face hub, with its model card and without
anybody's texts.

Only files that the export recorded writing are sent, and of these no tables, no map and no manifest
of a run: those of `improve` hold texts. What is sent is listed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.core.formatting import describe_size
from layerscope.core.json import read_json
from layerscope.core.runs import MANIFEST, MARKER
from layerscope.data.hub import hub_problem, quiet_bars
from layerscope.errors import ExportError, InvalidValueError, LayerscopeError, one_line
from layerscope.store import atomic, checked
from layerscope.store.records import FILES, check_files

PRIVATE = (
    "The tables and `map.safetensors` here hold texts of that sample. If they are private, publish this folder with "
    "`layerscope export FOLDER --push`, which leaves them out, or improve with `--no-texts`."
)
_TABLES = (".csv", ".parquet", "map.safetensors")
_CARD, _PLACE = "README.md", "path/to/this/folder"


@dataclass(frozen=True)
class Parcel:
    """What goes to the hub: files as they lie in the folder, and those that are written anew; and
    what stays here."""

    folder: Path
    repo: str
    files: tuple[str, ...]
    written: Mapping[str, bytes]
    stays: tuple[str, ...]
    public: bool = False

    def __str__(self) -> str:
        size = sum((self.folder / name).stat().st_size for name in self.files) + sum(
            map(len, self.written.values())
        )
        kind = "public: everybody can read it" if self.public else "private"
        stays = f" Not sent: {', '.join(self.stays)}." if self.stays else ""
        names, goes = (
            ", ".join(sorted([*self.files, *self.written])),
            "An earlier export there is replaced.",
        )
        return f"{describe_size(size)} of {self.folder} to the hub as {self.repo} ({kind}): {names}. {goes}{stays}"


def pack(folder: str | Path, repo: str, public: bool = False) -> Parcel:
    """Say what would be sent. Nothing is, and a folder that is no whole export is refused."""
    place = Path(folder)
    check_address(repo)
    facts = read_json(place / MARKER, error=ExportError) if (place / MARKER).is_file() else {}
    if facts.get("kind") != "export" or not isinstance(facts.get(FILES), dict):
        raise ExportError(
            f"{place} holds no export of layerscope: only such a folder is pushed (export and improve write one)."
        )
    for path, problem in check_files(place):
        if problem:
            raise ExportError(f"{path} is damaged ({problem}). Export it again before you push it.")
    ours = [
        name
        for name in facts[FILES]
        if (place / name).is_file() and not (place / name).is_symlink()
    ]
    sent = [
        name
        for name in ours
        if not name.endswith(_TABLES) and Path(name).name not in (MANIFEST, _CARD)
    ]
    card = (place / _CARD).read_text(encoding="utf-8") if _CARD in ours else ""
    card = card.replace(PRIVATE, "").replace(_PLACE, repo)
    why = str(facts.get("why") or "").replace(PRIVATE, "").strip()
    kept = {**facts, "why": why, FILES: {name: facts[FILES][name] for name in sent}}
    written = {
        MARKER: atomic.json_text(checked.with_checksum(kept)).encode(),
        **({_CARD: card.encode()} if card else {}),
    }
    everything = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    return Parcel(
        place, repo, tuple(sent), written, tuple(sorted(everything - {*sent, *written})), public
    )


def push(parcel: Parcel) -> str:
    """Send a parcel in one commit, and say where it is. The access token is the hub client's own
    (`hf auth login`, HF_TOKEN).

    A repository that is there is taken only if it holds an export of layerscope, and is as private
    as was asked for. Files of that export which the new one lacks are removed.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    quiet_bars()
    api, repo, gone = HfApi(library_name="layerscope"), parcel.repo, set[str]()
    check_token()
    try:
        try:
            there = api.model_info(repo)
        except RepositoryNotFoundError:
            api.create_repo(repo, private=not parcel.public)
        else:
            names = {one.rfilename for one in there.siblings or ()} - {".gitattributes", _CARD}
            if names and MARKER not in names:
                raise ExportError(
                    f"{repo} is on the hub and holds no export of layerscope. Choose another name."
                )
            if not there.private and not parcel.public:
                raise ExportError(
                    f"{repo} is there and public, so what is pushed to it is, too. To do that: public=True."
                )
            if there.private and parcel.public:
                raise ExportError(
                    f"{repo} is there and private, and stays so. Leave out public=, or open it on the hub."
                )
            if MARKER in names:
                old = read_json(
                    Path(api.hf_hub_download(repo, MARKER, revision=there.sha)), error=ExportError
                ).get(FILES)
                gone = names.intersection(old if isinstance(old, dict) else ()).difference(
                    parcel.files, parcel.written
                )
        given: list[tuple[str, Any]] = [(name, str(parcel.folder / name)) for name in parcel.files]
        added = [
            CommitOperationAdd(name, content) for name, content in [*given, *parcel.written.items()]
        ]
        operations = [*added, *(CommitOperationDelete(name) for name in sorted(gone))]
        layer = read_json(parcel.folder / MARKER, error=ExportError).get("layer")
        done = api.create_commit(
            repo, operations, commit_message=f"Layer {layer}, exported with layerscope"
        )
    except LayerscopeError:
        raise
    except Exception as error:  # the client's, the network's and the hub's own
        reason = hub_problem(error) or (one_line(str(error)) or type(error).__name__)[:300].rstrip(
            "."
        )
        raise ExportError(
            f"{repo} could not be pushed: {reason}. The folder {parcel.folder} is as it was."
        ) from error
    return str(done.repo_url)


def check_address(repo: str) -> None:
    """Refuse an invalid repository name."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
        named = repo.count("/") == 1
    except HFValidationError:
        named = False
    if not named:
        raise InvalidValueError(
            f"push= takes a name on the hub with its owner, such as user/name, not {repo!r}."
        )


def check_token() -> None:
    """Refuse to push where nobody is logged in."""
    from huggingface_hub import get_token

    if not get_token():
        raise ExportError(
            "pushing to the hub needs an access token. Log in (`hf auth login`), or set HF_TOKEN."
        )
