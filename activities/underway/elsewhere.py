"""Whether there are further workers: one of them may have what this one lacks, as in a deploy (R12.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.service import RPCError

POLLS_WITHIN: Final = timedelta(seconds=75)
"""Since its last poll, which lasts a minute, a worker is taken for one that is there."""
_TIMEOUT: Final = timedelta(seconds=5)


async def others_poll() -> bool:
    """Whether further workers take runs from the queue of the activity under way; not where that cannot be asked."""
    client, info = activity.client(), activity.info()
    queue, kind = TaskQueue(name=info.task_queue), TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    asked = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=queue, task_queue_type=kind)
    try:
        pollers = (await client.workflow_service.describe_task_queue(asked, retry=False, timeout=_TIMEOUT)).pollers
    except RPCError:
        return False  # not everybody may ask
    now = datetime.now(UTC)
    lately = (one for one in pollers if now - one.last_access_time.ToDatetime(UTC) < POLLS_WITHIN)
    return any(one.identity != client.identity for one in lately)
