"""The store of files: bounded by numbers and sums (R20.3)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.converter import DataConverter, ExternalStorage

from perdure import Media, MediaError
from perdure.agents.media import media_without_bytes
from perdure.hosting._storage import FileStorage
from perdure.queries.media_store import MediaStore
from perdure.values.limits import MAX_FILES_OF_CALL


def store_in(folder: Path, tenant: str = "") -> MediaStore:
    return MediaStore(DataConverter(external_storage=ExternalStorage(drivers=[FileStorage(folder)])), tenant)


@pytest.mark.asyncio(loop_scope="session")
async def test_r20_3_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    files = [Media(data=b"%d" % number) for number in range(MAX_FILES_OF_CALL + 1)]
    with pytest.raises(MediaError, match="there are 201 files; at most 200 are allowed"):
        await store.save(files)
    assert os.listdir(tmp_path) == []
    await store.save([*files[1:], *files[1:]])  # each counts once
    with pytest.raises(MediaError, match="there are 201 files"):
        await store.load([media_without_bytes(file.value) for file in files])
    loaded = [media_without_bytes(file.value) for file in files[1:]]
    await store.load(loaded)
    assert [file.read() for file in loaded] == [file.read() for file in files[1:]]


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.asyncio(loop_scope="session")
async def test_r20_3_a_damaged_file_is_stored_again(tmp_path: Path) -> None:
    store, file = store_in(tmp_path), Media(data=b"a,b")
    await store.save([file])
    [stored] = files_in(tmp_path)
    stored.write_bytes(stored.read_bytes()[:-1])
    assert await store.find(file.digest) is None
    await store.save([file])
    assert await store.find(file.digest) == b"a,b"


@pytest.mark.asyncio(loop_scope="session")
async def test_r24_5_a_digest_without_a_tenant_removes_no_file_of_a_tenant(tmp_path: Path) -> None:
    acme, nobody, file = store_in(tmp_path, "acme"), store_in(tmp_path), Media(data=b"public price list")
    await acme.save([file])
    [stored] = files_in(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(MediaError, match="the stored bytes have another digest"):
            await nobody.delete(f"sha256:{stored.name}", dry_run=dry_run)
    await nobody.save([file])
    assert await nobody.delete(file.digest, dry_run=True)
    assert await nobody.delete(file.digest)
    assert not await nobody.delete(file.digest)
    assert files_in(tmp_path) == [stored]
    assert await acme.delete(file.digest)


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from perdure.hosting._storage import FileStorage
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
asyncio.run(FileStorage(Path(sys.argv[1])).put_named("ab", b"x" * 5_000))
"""


def test_r18_2_a_full_disk_leaves_no_part_of_a_value(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "File too large" in found.stderr
    assert files_in(tmp_path) == []
