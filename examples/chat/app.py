"""The chat's application: a page with the AI SDK's `useChat`, and the two routes that it needs.

`uvicorn examples.chat.app:app`, beside `perdure dev --tools examples.chat.agent`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Cookie, Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles

from examples.chat.agent import Customer, shopper
from perdure import Perdure
from perdure.gateway import chat_response, resume_response

PAGE = Path(__file__).parent / "page"
# In place of your own sign-in: a cookie, and whose it is.
CUSTOMERS = {"cookie-of-ann": Customer(number="C-17"), "cookie-of-bo": Customer(number="C-18")}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    app.state.perdure = await Perdure.connect(lazy=True)
    yield


app = FastAPI(title="A chat with useChat", lifespan=lifespan)


def customer(who: Annotated[str, Cookie()] = "") -> Customer:
    """Return the customer who is signed in."""
    if (found := CUSTOMERS.get(who)) is None:
        raise HTTPException(401, "sign in first")
    return found


@app.post("/api/chat")
async def chat(request: Request, who: Annotated[Customer, Depends(customer)]) -> Response:
    """Send what the page says, and stream the answer."""
    return await chat_response(request.app.state.perdure, shopper, await request.json(), sender=who.number, context=who)


@app.get("/api/chat/{id}/stream")
async def resume(request: Request, id: str, who: Annotated[Customer, Depends(customer)]) -> Response:
    """Stream the answer that is being given to a page that was loaded anew."""
    return await resume_response(request.app.state.perdure, id, sender=who.number)


app.mount("/", StaticFiles(directory=PAGE, html=True, check_dir=False))
