"""The store of files: bounded by numbers and sums (R20.3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from temporalio.converter import DataConverter, ExternalStorage

from perdure import Media, MediaError
from perdure.agents.media import media_without_bytes
from perdure.hosting._storage import FileStorage
from perdure.queries.media_store import MediaStore
from perdure.values.limits import MAX_FILES_OF_CALL

pytestmark = pytest.mark.asyncio(loop_scope="session")


def store_in(folder: Path) -> MediaStore:
    return MediaStore(DataConverter(external_storage=ExternalStorage(drivers=[FileStorage(folder)])))


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
