"""Whatever anybody sends to the API is answered with a reason, and never takes the gateway down (R18.6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.testing import WorkflowEnvironment

from perdure.gateway.api.adapter import OPERATIONS
from tests.gateway.test_api import GREETER, served
from tests.soak import share
from tests.support import DONE

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", ".", "..", "a/b", "now", "1"]
)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def names(model: Any) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, Any, Any]:
    """One that has the names of an operation, most of the time, and anything in their places."""
    each = draw(st.sampled_from(OPERATIONS))
    path = each.path
    for place in ("run", "session", "message", "agent", "schedule"):
        path = path.replace(f"{{{place}}}", quote(draw(WORDS), safe=draw(st.sampled_from(["", "/"]))))
    query = draw(
        st.dictionaries(st.sampled_from([*names(each.query), "x"]), WORDS | st.integers().map(str), max_size=3)
    )
    query |= {"timeout": "0"} if "timeout" in names(each.query) and draw(st.booleans()) else {}
    known = st.dictionaries(st.sampled_from([*names(each.body), "x"]), JSON, max_size=5)
    body = draw(known | JSON) if each.method == "POST" else None
    return each.method, path, query, body


async def test_anything_is_answered(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with served(dev_server, tmp_path, lambda _: DONE, GREETER) as (front, _, (ann,)):
        loop = asyncio.get_running_loop()

        async def send(method: str, path: str, query: Any, body: Any) -> None:
            async with front.http.stream(method, path, params=query, json=body, headers=ann) as answer:
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    return
                text = (await answer.aread()).decode()
            assert answer.status_code < 500 or answer.status_code in (503, 504), (answer.status_code, text)
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == "application/problem+json"

        @settings(max_examples=share(120), suppress_health_check=list(HealthCheck))
        @given(requests())
        def check(request: tuple[str, str, Any, Any]) -> None:
            asyncio.run_coroutine_threadsafe(send(*request), loop).result(60)

        await asyncio.to_thread(check)
