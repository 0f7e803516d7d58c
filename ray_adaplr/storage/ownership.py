"""Whose folder is it? Every folder that the product makes carries a marker; nothing is removed where there is none.

A folder may be claimed when it is new or empty, or holds nothing but folders with markers of their own (stores that
were made for a run, the demo's source model). Checking writes nothing, so a refused command leaves nothing behind.
"""

import contextlib
import os
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any, Literal

from pyarrow import fs

from ray_adaplr import __version__
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import Folder, absolute, is_uri, parent_of
from ray_adaplr.storage.layout import BEING_WRITTEN, CARD_SIGN, LEASE, LOCK, MARKER, MODEL_CARD, RECORDS, STORE_MANIFEST

Kind = Literal["run", "model", "sweep", "store"]


def kind_of(folder: Folder) -> str | None:
    """What the product made this folder for, or None where it did not make it."""
    try:
        return str(folder.read_json(MARKER)["kind"])
    except FileNotFoundError:
        return "store" if folder.exists(STORE_MANIFEST) else None
    except (ValueError, TypeError, KeyError, OSError):
        return None


def check_ours(folder: Folder, kind: Kind) -> None:
    """InputError for a folder that holds files of somebody else, or was made for something else; changes nothing."""
    if folder.info().type in (fs.FileType.File, fs.FileType.Unknown):  # the latter: /dev/null
        raise InputError(f"{folder.uri} is a file; choose a new or empty folder for --out")
    found = kind_of(folder)
    if found == kind:
        _refuse_links(folder)
        return
    if found:
        raise InputError(f"{folder.uri} was made for a {found}, not for a {kind}; choose another --out")
    foreign = [info.base_name for info in _entries(folder) if not _carries_markers(folder, info)]
    if foreign:
        some = ", ".join(sorted(foreign)[:3]) + (", ..." if len(foreign) > 3 else "")
        raise InputError(
            f"{folder.uri} holds other files ({some}), which are never removed; choose a new or empty folder for --out"
        )


def _refuse_links(folder: Folder) -> None:
    """InputError where one of the folders within leads elsewhere: to files that another run or person may have made."""
    for entry in os.scandir(folder.base) if folder.is_local else ():
        if entry.is_symlink() and entry.is_dir():
            raise InputError(
                f"{entry.path} is a link to {os.path.realpath(entry.path)}, where nothing is removed or written; put a "
                "folder in its place, or choose another --out"
            )


def claim(folder: Folder, kind: Kind) -> None:
    """Put the marker into a folder that `check_ours` has found to be free."""
    if kind_of(folder) != kind:
        folder.write_json(MARKER, {"kind": kind, "made_by": f"ray-adaplr {__version__}"})


def clear(folder: Folder, patterns: tuple[str, ...]) -> None:
    """Remove files by the patterns of their paths where there is a marker, and the folders that this leaves empty.

    A model card that is somebody else's stays.
    """
    ours = _removable(folder, patterns)
    for path in sorted(ours, key=lambda path: path in RECORDS):  # last: whoever is killed here leaves what tells of it
        folder.delete_file(path)
    parents = {str(parent) for path in ours for parent in PurePath(path).parents} - {"."}
    for parent in sorted(parents, key=len, reverse=True) if folder.is_local else ():  # buckets have no empty folders
        with contextlib.suppress(OSError):  # it holds something else
            os.rmdir(folder.path(parent))


def refuse_to_remove(folder: Folder, patterns: tuple[str, ...], inputs: dict[str, Any]) -> None:
    """InputError where `clear` would remove what a command reads; changes nothing.

    `inputs` are what each option names, one or a list: a path, a URI, NAME=FILE, or what lies in no folder.
    """
    out = _resolved(folder.uri)
    removed = [f"{out}/{path}" for path in _removable(folder, patterns)]
    for option, named in inputs.items():
        for place in named if isinstance(named, list) else [named]:
            if not isinstance(place, str | Path) or not str(place):
                continue
            found = _resolved(place)
            if f"{found}/".startswith(f"{out}/") and any(f"{path}/".startswith(f"{found}/") for path in removed):
                raise InputError(
                    f"{option} {place} lies in --out {folder.uri}, and --force would remove it; choose another --out"
                )


def _removable(folder: Folder, patterns: tuple[str, ...]) -> list[str]:
    """Paths of the files that `clear` removes."""
    ours = [path for path in folder.files() if any(_matches(path, each) for each in patterns)]
    ours = [path for path in ours if not path.endswith(MODEL_CARD) or may_replace_card(folder, path)]
    return ours if ours and kind_of(folder) else []


def _resolved(place: str | Path) -> str:
    """A place under its one name: without links in a path, without the options of a URI; of NAME=FILE the file."""
    place = str(place).removeprefix("file://")
    if is_uri(place):
        return place.partition("?")[0].rstrip("/")
    path = absolute(place)
    _, _, file = place.partition("=")
    return os.path.realpath(path if os.path.exists(path) or not file else absolute(file))


def may_replace_card(folder: Folder, path: str) -> bool:
    """Whether there is no model card at a path, or one that a run wrote."""
    return not folder.exists(path) or CARD_SIGN.encode() in folder.read(path)


def _matches(path: str, pattern: str) -> bool:
    """Part by part: a `*` stays within a folder."""
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch, parts, wanted))


def own_file(place: str | Path, start: bytes, sign: bytes) -> tuple[Folder, str]:
    """Folder and name of a single file to write; one that is there is replaced only if it is like ours.

    Ours begin with `start` and hold `sign`. InputError when it is somebody else's, or a folder; changes nothing.
    """
    folder, name = parent_of(place)
    info = folder.info(name)
    content = folder.read(name) if info.type == fs.FileType.File else start + sign
    other = info.type in (fs.FileType.Directory, fs.FileType.Unknown)  # the latter: a pipe, a device
    if other or not (content.startswith(start) and sign in content):
        raise InputError(f"{place} is there already and was not made by this command; choose another place")
    return folder, name


def _entries(folder: Folder) -> list[fs.FileInfo]:
    """What lies in a folder but for what a process of ours that is faster may be writing at this moment."""
    names = {info.base_name: info for info in folder.infos()}
    return [names[name] for name in names if name not in (LOCK, LEASE) and not name.startswith(BEING_WRITTEN)]


def _carries_markers(folder: Folder, info: fs.FileInfo) -> bool:
    """Whether an entry is a folder of ours, or one that holds nothing but such, or nothing at all."""
    if info.type != fs.FileType.Directory:
        return False
    below = folder / info.base_name
    return bool(kind_of(below)) or all(_carries_markers(below, inside) for inside in _entries(below))
