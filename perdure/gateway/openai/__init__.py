"""The adapter for OpenAI's clients: they use an agent as a model, by `/v1/responses` and `/v1/chat/completions`
(R17.2).

`_requests` parses bodies, and `_agent_file` builds the agent file of each request's run. `_objects` and `_events` show
a run as a response object and as the events of a stream: plain data, without Temporal or network. `_runs` starts,
continues and awaits runs; `adapter` has the routes.
"""

from perdure.gateway.openai.adapter import openai_adapter

__all__ = ["openai_adapter"]
