"""The adapter for the AI SDK's `useChat`: a chat is a session, and an answer is a UI message stream (R21.5).

`POST /ai-sdk/AGENT` takes what the AI SDK's default transport sends, `GET /ai-sdk/AGENT/CHAT/stream` resumes an answer. `chat_response` and
`resume_response` are the same for an application's own routes. `_requests` parses a page's request. `_events` shows a run's events as
chunks (pure). `adapter` has the routes.
"""

from perdure.gateway.ai_sdk.adapter import ai_sdk_adapter, chat_response, resume_response

__all__ = ["ai_sdk_adapter", "chat_response", "resume_response"]
