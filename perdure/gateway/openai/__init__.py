"""The adapter for OpenAI's clients: they use an agent as a model, by `/v1/responses` and `/v1/chat/completions` (R17.2).

`requests` parses bodies, and `agent_file` makes of each one the agent file of its run. `objects` and `events` show a run as a response
object and as the events of a stream: plain data, without Temporal or network. `runs` starts, continues and awaits runs; `adapter` has the
routes.
"""

from perdure.gateway.openai.adapter import openai_adapter

__all__ = ["openai_adapter"]
