"""Models that processes other than workers ask."""

from __future__ import annotations

import pytest

from perdure.errors import RunError
from perdure.hosting.model_client import ModelClient
from perdure.models.requests import RequestContext

WHERE = "for the process that calls the model"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-9", f"no key for the model: set OPENAI_API_KEY (and OPENAI_BASE_URL for your own server) {WHERE}"),
        ("gpt-9@there", "PERDURE_ENDPOINTS has no endpoint 'there'"),
        ("google:gemini-9", f"no key for the provider 'google': set GEMINI_API_KEY {WHERE}"),
    ],
)
async def test_r22_2_a_missing_key_or_endpoint_is_one_error_without_a_worker(
    model: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "PERDURE_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RunError) as raised:
        await ModelClient().ask(model, RequestContext(messages=[]))
    assert words in str(raised.value)
    assert "the worker" not in str(raised.value)
