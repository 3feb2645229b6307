"""Large values in S3, or in a service with S3's protocol (the extra `perdure[s3]`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import aioboto3
from temporalio.api.common.v1 import Payload
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext

from perdure.hosting.codec import WORKFLOW_TYPES


class _PerOperation(S3StorageDriverClient):
    """A client that opens a connection for each operation: nothing would close a connection that is kept."""

    def __init__(self) -> None:
        self._session = aioboto3.Session()

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        async with self._session.client("s3") as client:
            await new_aioboto3_client(client).put_object(bucket=bucket, key=key, data=data)

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        async with self._session.client("s3") as client:
            return await new_aioboto3_client(client).object_exists(bucket=bucket, key=key)

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        async with self._session.client("s3") as client:
            return await new_aioboto3_client(client).get_object(bucket=bucket, key=key)

    async def list_objects(self, bucket: str, *prefixes: str) -> list[str]:
        found: list[str] = []
        async with self._session.client("s3") as client:
            for prefix in prefixes:
                pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
                found += [each["Key"] async for page in pages for each in page.get("Contents", ())]
        return found

    async def delete_objects(self, bucket: str, keys: Sequence[str]) -> None:
        async with self._session.client("s3") as client:
            for first in range(0, len(keys), _AT_ONCE):
                objects: Any = [{"Key": key} for key in keys[first : first + _AT_ONCE]]
                answer = await client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
                if errors := answer.get("Errors"):
                    raise OSError(f"{bucket}: {errors[0].get('Key')} cannot be removed: {errors[0].get('Message')}")


_AT_ONCE: Final = 1000
"""The most objects that S3 removes in one request."""
_FILES: Final = "files/sha256/"


def _segment(text: str) -> str:
    """Return a part of a key as the SDK's driver writes it."""
    return quote(text, safe="!*'()").replace("~", "%7E") or "null"


class _OwnBucket(S3StorageDriver):
    """A driver that reads from its own bucket only: a value's place comes from a history, which others may write."""

    def __init__(self, bucket: str) -> None:
        super().__init__(client=_PerOperation(), bucket=bucket)
        self._own = bucket
        self._files = _PerOperation()

    async def put_named(self, name: str, data: bytes) -> None:
        """Write a file of `perdure.queries.media_store`."""
        key = f"{_FILES}{name}"
        if not await self._files.object_exists(bucket=self._own, key=key):
            await self._files.put_object(bucket=self._own, key=key, data=data)

    async def get_named(self, name: str) -> bytes | None:
        """Return a file's bytes; `None` if the file does not exist."""
        key = f"{_FILES}{name}"
        if not await self._files.object_exists(bucket=self._own, key=key):
            return None
        return await self._files.get_object(bucket=self._own, key=key)

    async def delete_named(self, name: str) -> bool:
        """Remove a file. Return whether it existed."""
        key = f"{_FILES}{name}"
        if not await self._files.object_exists(bucket=self._own, key=key):
            return False
        await self._files.delete_objects(self._own, [key])
        return True

    async def list_named(self) -> list[str]:
        """Return the names of all files."""
        return [key.removeprefix(_FILES) for key in await self._files.list_objects(self._own, _FILES)]

    async def replace_named(self, name: str, data: bytes) -> None:
        """Replace a file's bytes. Do nothing if the file does not exist."""
        if await self._files.object_exists(bucket=self._own, key=f"{_FILES}{name}"):
            await self._files.put_object(bucket=self._own, key=f"{_FILES}{name}", data=data)

    async def erase_owned(self, namespace: str, workflow_id: str, *, dry_run: bool = False) -> int:
        """Remove a workflow's values: the key of a value names its workflow. See `perdure.queries.media_store.ErasableStorage`."""
        kinds = (*sorted(WORKFLOW_TYPES), "null")
        below = (f"v0/ns/{_segment(namespace)}/wt/{_segment(kind)}/wi/{_segment(workflow_id)}/ri/" for kind in kinds)
        keys = await self._files.list_objects(self._own, *below)
        if keys and not dry_run:
            await self._files.delete_objects(self._own, keys)
        return len(keys)

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        for claim in claims:
            if (named := claim.claim_data.get("bucket")) != self._own:
                raise ValueError(f"the bucket {named!r} is not this worker's bucket")
        return await super().retrieve(context, claims)


def s3_driver(bucket: str) -> S3StorageDriver:
    """Return a driver that stores in the bucket, which must exist."""
    return _OwnBucket(bucket)
