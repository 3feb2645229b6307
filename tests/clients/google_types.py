"""Read bodies of `generateContent`, a JSON list, by the types of Google's client library; it knows no other keys."""

from __future__ import annotations

import json
import sys

from google.genai import types

PARTS = {"systemInstruction": types.Content, "generationConfig": types.GenerationConfig}
LISTS = {"contents": types.Content, "tools": types.Tool}

for body in json.load(sys.stdin):
    for key, value in body.items():
        if key in LISTS:
            for each in value:
                LISTS[key].model_validate(each)
        elif key not in ("model", "stream"):  # which belong into the address
            PARTS[key].model_validate(value)
    print(len(body["contents"]))
