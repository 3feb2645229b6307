"""The text of an answer that is text, without what models and servers leave around it, while it is being written."""

from __future__ import annotations

import re
from typing import Final

from perdure.model.dialects.saying.plain import Plain
from perdure.model.dialects.thoughts import FINAL_CHANNEL, Thoughts, settled

_END_OF_THOUGHT: Final = re.compile(rf"</think(?:ing)?>|{FINAL_CHANNEL}")


class ProseText:
    """Pushed an answer in pieces, gives the text that `without_thoughts` makes of it, up to its first reference.

    Gives nothing of a JSON document, which is the output and not its text, and no more where what it gave turns out to have been a
    thought whose beginning was lost: its end says what it was.
    """

    def __init__(self) -> None:
        self.thoughts = Thoughts()
        self._rest = ""
        """What may belong to the end: blanks and marks; of an answer that begins with a mark all."""
        self._begun = False
        self._plain = Plain()
        self._stopped = self.anew = False
        """`anew`: what was given was a thought."""

    def push(self, text: str) -> str:
        """What is known of it now."""
        text = self._rest + self.thoughts.push(text)
        if not text or self._stopped:
            return ""
        ends = _END_OF_THOUGHT.search(text)
        if ends is not None and self._begun:
            self._stopped = self.anew = True
            return ""
        text = text if self._begun else text[ends.end() if ends else 0 :].lstrip()
        if not self._begun and text.startswith("{"):
            self._stopped = True
            return ""
        end = settled(text) if self._begun or ends is not None or not text.startswith("<|") else 0
        self._rest = text[end:]
        self._begun = self._begun or end > 0
        return self._plain.push(text[:end])
