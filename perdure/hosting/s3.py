"""Large values in S3, or in what speaks its protocol (the extra `perdure[s3]`)."""

from __future__ import annotations

import aioboto3
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client


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


def s3_driver(bucket: str) -> S3StorageDriver:
    """Stores in the bucket, which has to exist."""
    return S3StorageDriver(client=_PerOperation(), bucket=bucket)
