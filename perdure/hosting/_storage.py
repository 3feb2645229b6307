"""Large values outside of Temporal's history: Temporal's external storage, with files or S3 (R6.9)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from perdure.errors import SettingsError
from perdure.hosting.settings import in_force

STORAGE: Final = "PERDURE_STORAGE"
"""A folder, or `s3://bucket`; client and workers need the same one."""


class FileStorage(StorageDriver):
    """One file per value in a folder that client and workers share, named by the value's SHA-256. For one machine.

    Workflows with equal values share a file. `owners/WORKFLOW/VALUE` and `references/VALUE/WORKFLOW` are empty files,
    so that a value is removed with the last workflow that has it (R24.5). Values of Perdure 0.1.0 have no owner, and
    are never removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def name(self) -> str:
        return "perdure.files"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Write values as files. A file is complete or does not exist."""
        target = context.target
        id = target.id if isinstance(target, StorageDriverWorkflowInfo) else None
        owner = _owner(target.namespace, id) if target is not None and id else None
        return [await asyncio.to_thread(self._write, payload.SerializeToString(), owner) for payload in payloads]

    async def erase_owned(self, namespace: str, workflow_id: str, *, dry_run: bool = False) -> int:
        """Remove the values that no other workflow has. See `perdure.queries.media_store.ErasableStorage`."""
        return await asyncio.to_thread(self._erase, _owner(namespace, workflow_id), dry_run)

    def _erase(self, owner: str, dry_run: bool) -> int:
        own = self._folder / "owners" / owner
        names = [path.name for path in own.iterdir()] if own.is_dir() else []
        if dry_run:
            # An erasure that was interrupted may have removed the references already.
            return sum({path.name for path in self._references(name).glob("*")} <= {owner} for name in names)
        erased = 0
        for name in names:
            (self._references(name) / owner).unlink(missing_ok=True)
            erased += self._erase_unreferenced(name)
            (own / name).unlink(missing_ok=True)  # last: an attempt after an interrupted one finds the value again
        if names:
            own.rmdir()
        return erased

    def _erase_unreferenced(self, name: str) -> bool:
        references, value = self._references(name), self._path(name)
        try:
            references.rmdir()
        except FileNotFoundError:
            pass
        except OSError:  # another workflow has it
            return False
        aside = value.with_suffix(".erased")
        try:
            value.replace(aside)
        except FileNotFoundError:
            return False
        if references.exists():  # the value was stored again meanwhile
            aside.replace(value)
            return False
        aside.unlink()
        return True

    def _references(self, name: str) -> Path:
        return self._folder / "references" / name

    def _own(self, name: str, owner: str) -> None:
        """Note that the workflow has the value."""
        for _ in range(_OWN_ATTEMPTS):
            try:
                for path in (self._references(name) / owner, self._folder / "owners" / owner / name):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
                return
            except FileNotFoundError:  # another workflow's erasure removed the folder at this moment
                continue
        raise OSError(f"the owner of the stored value {name} cannot be recorded")

    async def delete_named(self, name: str) -> bool:
        """Remove a file. Return whether it existed."""
        path = self._folder / "files" / name[:2] / name
        try:
            await asyncio.to_thread(path.unlink)
        except FileNotFoundError:
            return False
        return True

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Read values. Raise `ValueError` for a damaged value or a claim of another storage, `OSError` if the folder cannot be read."""
        del context
        return [await asyncio.to_thread(self._read, claim.claim_data.get("sha256", "")) for claim in claims]

    async def put_named(self, name: str, data: bytes) -> None:
        """Write a file of `perdure.queries.media_store`."""
        await asyncio.to_thread(self._put, self._folder / "files" / name[:2] / name, data)

    async def get_named(self, name: str) -> bytes | None:
        """Return a file's bytes; `None` if the file does not exist. Raises `OSError` if the folder cannot be read."""
        return await asyncio.to_thread(self._get, self._folder / "files" / name[:2] / name)

    async def list_named(self) -> list[str]:
        """Return the names of all files."""
        return await asyncio.to_thread(lambda: sorted(path.name for path in (self._folder / "files").glob("??/*")))

    async def replace_named(self, name: str, data: bytes) -> None:
        """Replace a file's bytes. Do nothing if the file does not exist."""
        path = self._folder / "files" / name[:2] / name
        if path.exists():
            await asyncio.to_thread(self._write_whole, path, data)

    def _get(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            if not self._folder.is_dir():
                raise OSError(f"the folder of stored values {self._folder} does not exist") from None
            return None

    def _write(self, data: bytes, owner: str | None) -> StorageDriverClaim:
        name = hashlib.sha256(data).hexdigest()
        if owner is not None:
            self._own(name, owner)
        self._put(self._path(name), data)
        return StorageDriverClaim({"sha256": name})

    @classmethod
    def _put(cls, target: Path, data: bytes) -> None:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            cls._write_whole(target, data)

    @staticmethod
    def _write_whole(target: Path, data: bytes) -> None:
        """Write a file under another name, then rename it: a reader sees all new bytes or all old ones."""
        handle, draft = tempfile.mkstemp(dir=target.parent.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        except BaseException:  # such as a full disk
            os.unlink(draft)
            raise

    def _read(self, name: str) -> Payload:
        # The name comes from a history, which others may write: it must not lead out of the folder.
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise ValueError(f"{name!r} is not a valid name of a stored value")
        data = self._get(self._path(name))
        if data is None:
            raise ValueError(f"no such stored value: {name}")
        if hashlib.sha256(data).hexdigest() != name:
            raise ValueError(f"the stored value {name} was damaged")
        return Payload.FromString(data)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name


_OWN_ATTEMPTS: Final = 100


def _owner(namespace: str, workflow_id: str) -> str:
    return hashlib.sha256(f"{namespace}\n{workflow_id}".encode(errors="surrogatepass")).hexdigest()[:32]


def external_storage() -> ExternalStorage | None:
    """Return the storage that `PERDURE_STORAGE` names; `None` if it is not set. Raises `SettingsError` if the storage cannot be used."""
    settings = in_force()
    place = settings.storage
    if place is None:
        return None
    if "://" in place and not place.startswith("s3://"):  # as a folder, it would exist on this machine only
        raise SettingsError(f"{STORAGE} {place!r} cannot be used: expected a folder, or s3://bucket")
    driver = _s3(place.removeprefix("s3://")) if place.startswith("s3://") else FileStorage(Path(place))
    return ExternalStorage(drivers=[driver], payload_size_threshold=settings.storage_threshold)


def _s3(bucket: str) -> StorageDriver:
    """Return the SDK's S3 driver, configured as AWS's own tools are: `AWS_…`, profiles, a custom endpoint."""
    try:
        from perdure.hosting._s3 import s3_driver
    except ImportError:
        raise SettingsError(f"{STORAGE} names S3, which is not installed: pip install 'perdure[s3]'") from None
    return s3_driver(bucket)
