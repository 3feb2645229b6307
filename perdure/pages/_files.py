"""Files on the pages: pictures are shown, other files are downloads (R20.3)."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import caller_of
from perdure.gateway.errors import HttpError
from perdure.pages._site import Site
from perdure.queries.media_store import MediaStore
from perdure.values.media import PICTURES, file_name, is_digest, media_of

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "Cache-Control": "private, max-age=86400, immutable",
}


class FilePages:
    """The files below `/files`, by their digests. A caller reads files of its own tenant only."""

    def __init__(self, gateway: Gateway, site: Site) -> None:
        self._gateway = gateway
        self._site = site

    def routes(self) -> list[BaseRoute]:
        return [Route("/files/{digest}", self._file)]

    async def _file(self, request: Request) -> Response:
        """Return a file. Its type is detected from its bytes. A browser shows pictures, and saves other files."""
        caller = caller_of(request)
        caller.check("read", "read files")
        digest = str(request.path_params["digest"])
        store = MediaStore(self._gateway.perdure.client.data_converter, caller.tenant)
        is_one = store.is_there and is_digest(f"sha256:{digest}")
        data = await store.find(f"sha256:{digest}") if is_one else None
        if data is None:
            raise HttpError(404, "this file is not stored here")
        file = media_of(data)
        shown = file.type in PICTURES
        name = quote(file_name(request.query_params.get("name", "")) or "file", safe="")
        response = Response(data, media_type=file.type if shown else "application/octet-stream")
        response.headers["Content-Disposition"] = f"{'inline' if shown else 'attachment'}; filename*=UTF-8''{name}"
        response = self._site.guards.finish(request, response)
        response.headers.update(_HEADERS)
        return response
