"""Large values in S3, or in what speaks its protocol (the extra `perdure[s3]`)."""

from __future__ import annotations

from collections.abc import Sequence

import aioboto3
from temporalio.api.common.v1 import Payload
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext


class _PerOperation(S3StorageDriverClient):
    """Opens a connection for each operation: there is no place to close one that would be kept, and values are large."""

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


class _OwnBucket(S3StorageDriver):
    """Reads from its own bucket alone: the place of a value comes from a history, which others may write."""

    def __init__(self, bucket: str) -> None:
        super().__init__(client=_PerOperation(), bucket=bucket)
        self._own = bucket
        self._files = _PerOperation()

    async def put_named(self, name: str, data: bytes) -> None:
        """Write a file of `perdure.queries.media_store`."""
        key = f"files/sha256/{name}"
        if not await self._files.object_exists(bucket=self._own, key=key):
            await self._files.put_object(bucket=self._own, key=key, data=data)

    async def get_named(self, name: str) -> bytes | None:
        """Return such a file's bytes; `None` if it is not there."""
        key = f"files/sha256/{name}"
        if not await self._files.object_exists(bucket=self._own, key=key):
            return None
        return await self._files.get_object(bucket=self._own, key=key)

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        for claim in claims:
            if (named := claim.claim_data.get("bucket")) != self._own:
                raise ValueError(f"the bucket {named!r} is not that of this worker")
        return await super().retrieve(context, claims)


def s3_driver(bucket: str) -> S3StorageDriver:
    """Stores in the bucket, which has to exist."""
    return _OwnBucket(bucket)
