"""A worker that answers each chat with the digest of its body and the worker that the request was meant for.

Run as ``python -m tests.support.echo_worker PORT``. It serves what a gateway reads of vLLM: /health, /v1/models.
"""

from __future__ import annotations

import hashlib
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

MODEL = "echo"
DESTINATION = "x-gateway-destination-endpoint"


async def health(request: Request) -> PlainTextResponse:
    return PlainTextResponse("")


async def models(request: Request) -> JSONResponse:
    return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 1_000_000}]})


async def chat(request: Request) -> JSONResponse:
    body = await request.body()
    host, port = request.scope["server"]
    return JSONResponse(
        {
            "digest": hashlib.sha256(body).hexdigest(),
            "served_by": f"{host}:{port}",
            "chosen": request.headers.get(DESTINATION),
        }
    )


app = Starlette(
    routes=[
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/chat/completions", chat, methods=["POST"]),
    ]
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
