"""The store of files: each file once, under the digest of its bytes, in the storage of large values (R20.3)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeVar, runtime_checkable

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter

from perdure.agents.media import Media, fill_media
from perdure.errors import MediaError
from perdure.values.limits import MAX_FILES_OF_CALL, MAX_MEDIA, MAX_MEDIA_OF_CALL, bytes_text
from perdure.values.media import MediaValue

NO_STORAGE: Final = "files need storage: set PERDURE_STORAGE (a folder, or s3://bucket) for clients and workers"

_T = TypeVar("_T")
_PLAIN: Final = {"encoding": b"binary/plain"}
_AT_ONCE: Final = 8
"""The number of files that are stored, or loaded, at once."""


@runtime_checkable
class NamedStorage(Protocol):
    """A storage of large values that also takes a value under a name."""

    async def put_named(self, name: str, data: bytes) -> None:
        """Store the bytes under a name. The bytes of a name never change: an existing name is not written again."""
        ...

    async def get_named(self, name: str) -> bytes | None:
        """Return the bytes; `None`: there are none of this name."""
        ...


@runtime_checkable
class FilesConverter(Protocol):
    """A data converter with a separate storage for files, beside the external storage of large values."""

    @property
    def files(self) -> NamedStorage | None:
        """Return the storage of files; `None`: files go to the external storage."""


@runtime_checkable
class ErasableStorage(Protocol):
    """A storage from which the values of one workflow can be removed (R24.5)."""

    async def delete_named(self, name: str) -> bool:
        """Remove the bytes of this name, and return whether they existed."""
        ...

    async def list_named(self) -> list[str]:
        """Return the names of all files, of every tenant."""
        ...

    async def replace_named(self, name: str, data: bytes) -> None:
        """Replace the bytes of this name. Do nothing if there are none."""
        ...

    async def erase_owned(self, namespace: str, workflow_id: str, *, dry_run: bool = False) -> int:
        """Remove the values of a workflow that no other workflow has; return their number. With `dry_run` only count them."""
        ...


def erasable(converter: DataConverter) -> ErasableStorage | None:
    """Return the storage of a converter, if values can be removed from it."""
    drivers = converter.external_storage.drivers if converter.external_storage is not None else ()
    return next((driver for driver in drivers if isinstance(driver, ErasableStorage)), None)


async def walk_files(converter: DataConverter) -> AsyncGenerator[tuple[str, Payload], None]:
    """Yield each stored file, of every tenant, with its name, as the codec has encoded it."""
    if (storage := erasable(converter)) is None or not isinstance(storage, NamedStorage):
        return
    for name in await storage.list_named():
        if (stored := await storage.get_named(name)) is not None and (payload := _parse(stored)) is not None:
            yield name, payload


async def encode_again(converter: DataConverter, name: str, payload: Payload) -> bool:
    """Encode a file of `walk_files` under the codec's newest key. Return whether the codec could decode it."""
    storage, codec = erasable(converter), converter.payload_codec
    assert storage is not None
    assert codec is not None
    [decoded] = await codec.decode([payload])
    if dict(decoded.metadata) != _PLAIN:
        return False
    [encoded] = await codec.encode([decoded])
    await storage.replace_named(name, encoded.SerializeToString())
    return True


class MediaStore:
    """The files of a tenant, for clients and workers that have this converter. Its codec encodes what is stored.

    `tenant`: the owner of the run, session or caller (`""`: none). A file of another tenant is not found, even
    by its digest, as if it were not stored.
    """

    def __init__(self, converter: DataConverter, tenant: str = "") -> None:
        self._tenant = tenant
        self._codec = converter.payload_codec
        drivers = converter.external_storage.drivers if converter.external_storage is not None else ()
        own = converter.files if isinstance(converter, FilesConverter) else None
        self._storage = next((each for each in drivers if isinstance(each, NamedStorage)), own)

    @property
    def is_there(self) -> bool:
        """Whether there is a storage for files."""
        return self._storage is not None

    async def save(self, files: Iterable[Media]) -> None:
        """Store the bytes of files that have them. Raises `MediaError` without storage, and for too many files or bytes."""
        new = {file.digest: file.read() for file in files if file.is_loaded}
        _check_sum(map(len, new.values()))
        if new and self._storage is None:
            raise MediaError(NO_STORAGE)
        for batch in _batches(new):
            await asyncio.gather(*(self._put(digest, data) for digest, data in batch))

    async def load(self, files: Iterable[Media]) -> None:
        """Load the bytes of files that lack them. Raises `MediaError` for a file that is not stored, and for too many."""
        missing = [file for file in files if not file.is_loaded]
        _check_sum({file.digest: file.size for file in missing}.values())
        wanted = {file.digest: file.value for file in missing}
        found: dict[str, bytes] = {}
        for batch in _batches(wanted):
            loaded = await asyncio.gather(*(self.get(value) for _, value in batch))
            found.update(zip((digest for digest, _ in batch), loaded, strict=True))
        for file in missing:
            fill_media(file, found[file.digest])

    async def get(self, value: MediaValue) -> bytes:
        """Return the bytes of a file. Raises `MediaError` if they are not stored, or if their number differs from the
        value's.
        """
        data = await self.find(value.digest)
        if data is None:
            raise MediaError(f"the file {value.line} is not in this storage")
        if len(data) != value.bytes:  # limits on sums use the numbers in the values
            raise MediaError(f"the file {value.line} has {len(data):,} bytes")
        return data

    async def find(self, digest: str) -> bytes | None:
        """Return the bytes of this digest; `None`: they are not stored here, or were damaged."""
        if self._storage is None:
            raise MediaError(NO_STORAGE)
        stored = await self._storage.get_named(self._name(digest))
        return None if stored is None else await self._decode(stored, digest)

    async def delete(self, digest: str, *, dry_run: bool = False) -> bool:
        """Remove the file of this digest, and return whether it existed. With `dry_run` remove nothing.

        Raises `MediaError` if, without a tenant, the stored bytes have another digest: the name may be that of a
        tenant's file.
        """
        if not isinstance(self._storage, ErasableStorage):
            return False
        name = self._name(digest)
        if (stored := await self._storage.get_named(name)) is None:
            return False
        if not self._tenant:
            found = None
            with contextlib.suppress(Exception):  # a codec may raise anything
                found = await self._decode(stored, digest)
            if found is None:
                raise MediaError(
                    "the stored bytes have another digest: the file is damaged, its key is gone, or it belongs to a"
                    " tenant. To erase a tenant's file, name the tenant"
                )
        return dry_run or await self._storage.delete_named(name)

    async def _decode(self, stored: bytes, digest: str) -> bytes | None:
        """Return the bytes of a stored file; `None`: it was damaged, or its key is gone."""
        if (payload := _parse(stored)) is None:
            return None
        if self._codec is not None:
            payload = (await self._codec.decode([payload]))[0]
        return payload.data if await asyncio.to_thread(_digest, payload.data) == digest else None

    async def _put(self, digest: str, data: bytes) -> None:
        """Store the bytes. Replace what was stored if it is damaged, or its key is gone."""
        assert self._storage is not None
        name = self._name(digest)
        stored = await self._storage.get_named(name)
        if stored is not None and await self._decode(stored, digest) is not None:
            return
        payload = Payload(metadata=_PLAIN, data=data)
        if self._codec is not None:
            payload = (await self._codec.encode([payload]))[0]
        if stored is None:
            await self._storage.put_named(name, payload.SerializeToString())
        elif isinstance(self._storage, ErasableStorage):
            await self._storage.replace_named(name, payload.SerializeToString())

    def _name(self, digest: str) -> str:
        """Return the name of a stored file: its digest; for a tenant's file a digest of the tenant and its digest."""
        if not self._tenant:
            return digest.removeprefix("sha256:")
        return hashlib.sha256(f"{len(self._tenant)}:{self._tenant}{digest}".encode()).hexdigest()


def _parse(stored: bytes) -> Payload | None:
    """Return the stored payload; `None`: the file was damaged, or is another program's."""
    try:
        return Payload.FromString(stored)
    except DecodeError:
        return None


def _batches(files: Mapping[str, _T]) -> Iterator[list[tuple[str, _T]]]:
    """Yield batches of files that are stored, or loaded, at once."""
    items = list(files.items())
    for first in range(0, len(items), _AT_ONCE):
        yield items[first : first + _AT_ONCE]


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _check_sum(sizes: Iterable[int]) -> None:
    """Raise `MediaError` for files that are too many, too large, or too large together."""
    sizes = list(sizes)
    if len(sizes) > MAX_FILES_OF_CALL:
        raise MediaError(f"there are {len(sizes):,} files; at most {MAX_FILES_OF_CALL:,} are allowed")
    if (largest := max(sizes, default=0)) > MAX_MEDIA:
        raise MediaError(f"a file has {bytes_text(largest)}; the limit is {MAX_MEDIA:,}")
    if (size := sum(sizes)) > MAX_MEDIA_OF_CALL:
        raise MediaError(f"the files have {bytes_text(size)} together; the limit is {MAX_MEDIA_OF_CALL:,}")
