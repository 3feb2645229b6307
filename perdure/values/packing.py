"""Data that is carried on but seldom looked at, as short text: JSON, deflated, in base 64, under the number of its form."""

from __future__ import annotations

import base64
import zlib
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from perdure.errors import ProtocolError
from perdure.values.wire import Wire

M = TypeVar("M", bound=BaseModel)


class Packed(Wire):
    """A model as text. Where it is read by another version, the form says so before anything is misread."""

    form: int
    data: str

    def read(self, kind: type[M], form: int, what: str) -> M:
        """What `pack` was given. Raises `ProtocolError` where the form is another, or the data is none of it."""
        if self.form != form:
            raise ProtocolError(
                f"{what} has form {self.form}, and this worker reads form {form}: deploy the one that wrote it"
            )
        try:
            return kind.model_validate_json(zlib.decompress(base64.b64decode(self.data)))
        except (ValueError, zlib.error, ValidationError) as error:
            raise ProtocolError(f"{what} cannot be read: {str(error)[:200]}") from None


def pack(data: BaseModel, form: int) -> Packed:
    """Ten times shorter than the JSON where much repeats, as in a list of calls or of tools."""
    text = base64.b64encode(zlib.compress(data.model_dump_json(exclude_defaults=True).encode(), 1)).decode()
    return Packed(form=form, data=text)
