"""Files on the pages: pictures are shown, other files are offered (R20.3)."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.errors import MediaError
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import caller_of
from perdure.gateway.errors import HttpError
from perdure.pages._site import Site
from perdure.values.media import PICTURES, file_name, media_lines

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "Cache-Control": "private, max-age=86400, immutable",
}


class FilePages:
    """The files below `/files`, by their digests: whoever knows a digest has read it where the file is named."""

    def __init__(self, gateway: Gateway, site: Site) -> None:
        self._gateway = gateway
        self._site = site

    def routes(self) -> list[BaseRoute]:
        return [Route("/files/{digest}", self._file)]

    async def _file(self, request: Request) -> Response:
        """Return a file. Its bytes decide its type: a browser shows pictures, and saves anything else."""
        caller_of(request).check("read", "read files")
        digest = str(request.path_params["digest"])
        named = next(media_lines(f"[a/a, 0 bytes, sha256:{digest}]"), None)
        try:
            file = None if named is None else await self._gateway.perdure.load_media(named.as_json())
        except MediaError:
            file = None
        if file is None:
            raise HttpError(404, "this file is not stored here")
        shown = file.type in PICTURES
        name = quote(file_name(request.query_params.get("name", "")) or "file", safe="")
        response = Response(file.read(), media_type=file.type if shown else "application/octet-stream")
        response.headers["Content-Disposition"] = f"{'inline' if shown else 'attachment'}; filename*=UTF-8''{name}"
        response = self._site.guards.finish(request, response)
        response.headers.update(_HEADERS)
        return response
