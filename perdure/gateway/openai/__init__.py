"""The doors for OpenAI's clients: they talk to an agent as to a model, by `/v1/responses` and `/v1/chat/completions` (R17.2).

What a request says (`reading`) becomes an agent file for its run (`documents`); what a run is at becomes a response
object (`answers`) and the events of a stream (`telling`): plain data, without Temporal or network. `following` waits for runs,
`responses` and `completions` start and go on with them, `routes` is the door.
"""

from perdure.gateway.openai.adapter import openai_adapter

__all__ = ["openai_adapter"]
