"""What the example's scripted model answers, by what was said last."""

from __future__ import annotations

from typing import Any

from perdure.testing.scripted_model import ChatRequest, Turn

PHRASES = ("Where is my order", "came broken", "She means the chair", "By the way", "What did I have")


def answer(request: ChatRequest) -> Turn | dict[str, Any]:
    """A plan, a reply, or a summary of the conversation where that is asked for."""
    if "You keep the memory" in request.text:
        return Turn("Ann asked for order A-17, which is on its way, and had 120 euros for order B-4 paid back.")
    last = max(PHRASES, key=request.text.rfind)
    if last == PHRASES[0]:
        return _then("find_order", "A-17", request.text, "on its way", "Your lamp (A-17) is on its way.")
    if last == PHRASES[1]:
        return {"calls": [{"_tool": "pay_back", "order": "A-17"}], "output": None}
    if last == PHRASES[2]:
        if "a chair paid back" in request.text:
            return {"calls": [], "output": "120 euros for your chair (B-4) are on their way to you."}
        # The refund of the wrong order is held: the plan says that it is dropped.
        return {"calls": [{"_tool": "pay_back", "order": "B-4"}, {"_tool": "keep", "drop": ["1.0"]}], "output": None}
    if last == PHRASES[3]:
        return {"calls": [], "output": "Thank you, I have noted that."}
    return {"calls": [], "output": f"You had {'B-4' if 'B-4' in request.text else 'nothing'} paid back."}


def _then(tool: str, order: str, text: str, done: str, reply: str) -> dict[str, Any]:
    """The call, and once its result is there the reply."""
    if done in text:
        return {"calls": [], "output": reply}
    return {"calls": [{"_tool": tool, "order": order}], "output": None}
