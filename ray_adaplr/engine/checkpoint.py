"""Checkpoints of a refinement: each part a file with its checksum, and a manifest, written last, that names them.

A checkpoint exists only when its manifest does and every file it names has the right bytes; anything less is passed
over with a warning. The logit history is kept in one file per slot, so an epoch adds one slot and not ten. Nothing is
unpickled: tensors are read with `weights_only=True` or as safetensors.
"""

import contextlib
import io
import json
import logging
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from ray_adaplr.core.refine import RefineState
from ray_adaplr.errors import InputError
from ray_adaplr.storage.digests import blake2
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import EPOCH_FILES, LABELS_NAME, MANIFEST_NAME, MANIFESTS, MEMBER_NAME, SLOT_NAME

log = logging.getLogger(__name__)
VERSION = 2  # 2: metrics are in metrics.jsonl, and a manifest holds only those that are not
# Of a `RefineState`: what goes into a file of arrays, and what the manifest holds.
_ARRAYS = ("labels", "last_changed", "healthy_labels", "best_labels", "best_confidence", "best_probabilities")
_NOTES = ("judged", "unwritten", "guarded", "stopped", "stopped_by")


class FileRecord(TypedDict):
    """A file of a checkpoint as its manifest names it."""

    name: str
    bytes: int
    digest: str


class DamagedCheckpoint(Exception):
    """A file of a checkpoint is missing or has other bytes than its manifest says."""


class UnfinishedCheckpoint(Exception):
    """A member was lost before its part was written; the run continues and the next checkpoint takes over."""


def write_file(folder: Folder, name: str, data: bytes) -> FileRecord:
    """Write a checkpoint's file and return its record."""
    folder.write(name, data)
    return {"name": name, "bytes": len(data), "digest": blake2(data)}


def read_file(folder: Folder, record: FileRecord) -> bytes:
    """A checkpoint's file, checked against its record."""
    try:
        data = folder.read(record["name"])
    except OSError as error:
        raise DamagedCheckpoint(f"{record['name']} cannot be read ({error})") from error
    if len(data) != record["bytes"] or blake2(data) != record["digest"]:
        raise DamagedCheckpoint(f"{record['name']} does not have the bytes its manifest names")
    return data


def save_member(folder: str, member: int, epoch: int, state: dict[str, Any]) -> FileRecord:
    """Write a member's shard: weights and optimiser."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return write_file(Folder(folder), MEMBER_NAME.format(member, epoch), buffer.getvalue())


def load_member(folder: str, record: FileRecord) -> dict[str, Any]:
    """Read a member's shard."""
    return torch.load(io.BytesIO(read_file(Folder(folder), record)), weights_only=True, map_location="cpu")


def save_state(folder: str, name: str, state: dict[str, Any]) -> None:
    """Keep what one process needs to go on, over what was kept before."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    Folder(folder).write(f"{name}.pt", buffer.getvalue())


def load_state(folder: str, name: str) -> dict[str, Any] | None:
    """What was kept, or None when there is none or it is damaged (with a warning)."""
    try:
        return torch.load(io.BytesIO(Folder(folder).read(f"{name}.pt")), weights_only=True, map_location="cpu")
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file raises whatever its bytes lead to
        log.warning("%s.pt is damaged and passed over, what it held is made again: %s", name, error)
        return None


class Checkpoints:
    """The checkpoints of one run: every so many epochs (0: none), of which `keep` whole ones stay, or two."""

    def __init__(self, folder: Folder, every: int = 1, keep: int | None = None) -> None:
        self.folder, self.every, self.keep = folder, every, keep or 2
        self.member_files: list[FileRecord | None] = []  # of the newest whole checkpoint
        self.epoch = -1  # last epoch inside the newest whole checkpoint
        self._slots: dict[int, FileRecord] = {}  # ring position -> file
        self._damaged: set[str] = set()  # manifests that name a file which is not whole

    def is_lost(self, member: int) -> bool:
        """Whether the newest checkpoint was written without this member."""
        return bool(self.member_files) and self.member_files[member] is None

    def member_state(self, member: int) -> tuple[str, FileRecord] | None:
        """Where the newest checkpoint holds a member's state: (folder, file), or None when there is none."""
        record = self.member_files[member] if self.member_files else None
        return (self.folder.uri, record) if record else None

    def due(self, epoch: int, last: bool) -> bool:
        """Whether the state after this epoch is to be kept."""
        return self.every > 0 and (last or (epoch + 1) % self.every == 0)

    def write(self, state: RefineState, receipts: Callable[[], list[FileRecord | None]]) -> None:
        """Keep the state after an epoch, while the members already train the next one.

        `receipts` waits for the members' files (None for a lost member); the manifest is written last.
        """
        epoch, history = state.epoch - 1, state.history
        for position in range(history.filled):
            pushes_since = (history.pushed - 1 - position) % len(history.slots)
            name = SLOT_NAME.format(history.pushed - 1 - pushes_since)
            if position not in self._slots or self._slots[position]["name"] != name:
                data = save_arrays({"logits": history.slots[position].numpy()})
                self._slots[position] = write_file(self.folder, name, data)
        arrays = {name: getattr(state, name).numpy() for name in _ARRAYS if getattr(state, name) is not None}
        labels = write_file(self.folder, LABELS_NAME.format(epoch), save_arrays(arrays))
        try:
            members = receipts()
        except UnfinishedCheckpoint as error:
            log.warning("there is no checkpoint of epoch %d: %s", epoch + 1, error)
            return
        slots = [self._slots[position] for position in range(history.filled)]
        manifest = {
            "version": VERSION,
            "epoch": epoch,
            "labels": labels,
            "members": members,
            "slots": slots,
            "pushed": history.pushed,
            **{name: getattr(state, name) for name in _NOTES},
        }
        self.folder.write(MANIFEST_NAME.format(epoch), json.dumps(manifest))
        self._damaged.discard(MANIFEST_NAME.format(epoch))
        self.epoch, self.member_files = epoch, members
        self._clean_up()

    def restore(self, empty: RefineState) -> RefineState | None:
        """The newest whole checkpoint as a state, or None; damaged ones are named in a warning and passed over.

        The history of `empty`, a state of the right size, is filled in place. The members' files are read by
        the members alone; whoever hears of a damaged one calls `pass_over`.
        """
        for name in reversed([name for name in self._manifests() if name not in self._damaged]):
            try:
                manifest = self.folder.read_json(name)
                if (found := manifest["version"]) != VERSION:
                    raise InputError(
                        f"{self.folder.uri} holds checkpoints of version {found}, and this ray-adaplr reads version "
                        f"{VERSION}; continue with the one that wrote them, or start again with --force"
                    )
                arrays = load_arrays(read_file(self.folder, manifest["labels"]))
                slots = [load_arrays(read_file(self.folder, record))["logits"] for record in manifest["slots"]]
            except InputError:
                raise
            except (DamagedCheckpoint, SafetensorError, ValueError, TypeError, KeyError, OSError) as error:
                log.warning("checkpoint %s is passed over: %s", self.folder.path(name), error)
                self._damaged.add(name)
                continue
            history = empty.history
            for position, slot in enumerate(slots):
                history.slots[position].copy_(torch.from_numpy(slot))
            history.pushed = manifest["pushed"]
            self._slots = dict(enumerate(manifest["slots"]))
            self.epoch, self.member_files = manifest["epoch"], manifest["members"]
            fields: dict[str, Any] = {name: manifest[name] for name in _NOTES}
            fields |= {name: torch.from_numpy(array) for name, array in arrays.items()}
            return RefineState(epoch=self.epoch + 1, history=history, **fields)
        return None

    def pass_over(self, damage: DamagedCheckpoint) -> None:
        """Take the checkpoint that was restored last for damaged: `restore` gives an earlier one next time."""
        name = MANIFEST_NAME.format(self.epoch)
        log.warning("checkpoint %s is passed over: %s", self.folder.path(name), damage)
        self._damaged.add(name)
        self.epoch, self.member_files, self._slots = -1, [], {}

    def _manifests(self) -> list[str]:
        return [name for name in self.folder.names() if fnmatch(name, MANIFESTS)]

    def _clean_up(self) -> None:
        """Delete manifests that are old or were passed over, then every file that no remaining manifest names."""
        manifests = self._manifests()
        whole = [name for name in manifests if _epoch_in(name) <= self.epoch and name not in self._damaged]
        kept = whole[-self.keep :]
        for name in manifests:
            if name not in kept:
                self.folder.delete_file(name)
        named = set(kept)
        for name in kept:
            with contextlib.suppress(ValueError, KeyError):  # damaged: it protects nothing
                manifest = self.folder.read_json(name)
                records = [manifest["labels"], *manifest["slots"], *filter(None, manifest["members"])]
                named |= {record["name"] for record in records}
        for name in self.folder.names():
            ours = any(fnmatch(name, pattern) for pattern in EPOCH_FILES)
            newer = _epoch_in(name) > self.epoch  # a member may be writing the next shard already
            if ours and name not in named and not newer:
                self.folder.delete_file(name)


def _epoch_in(name: str) -> int:
    digits = name.rsplit(".", 1)[0].rsplit("-", 1)[-1]
    return int(digits) if digits.isdigit() else -1
