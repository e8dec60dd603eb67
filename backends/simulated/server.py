"""vLLM's HTTP paths in front of one `SimulatedWorker`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.simulated.answers import AnswerApp, DialectApp
from backends.simulated.deaths import DeathBody
from backends.simulated.dialects import MessagesDialect, ResponsesDialect
from backends.simulated.errors import ApiError
from backends.simulated.frames import CHAT, COMPLETION
from backends.simulated.kv.kv_transfers import SIDE_CHANNEL, SideChannelCall
from backends.simulated.kv.kv_waits import MooncakeTransfers
from backends.simulated.kv.peer_tier import PEER_LOOKUP, PeerLookup
from backends.simulated.request import (
    DetokenizeBody,
    LoadAdapterBody,
    TokenizeBody,
    TokenizeChatBody,
    UnloadAdapterBody,
    read_body,
    read_object,
)
from backends.simulated.worker import VERSION, PauseMode, SimulatedWorker
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.mooncake import BOOTSTRAP_PATH

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(worker: SimulatedWorker) -> Starlette:
    """Return the worker's HTTP application; the caller must start `worker`."""
    paths = _Paths(worker)
    block_tokens = worker.engine.block_size
    openai = [
        Route("/v1/chat/completions", AnswerApp(worker, CHAT), methods=["POST"]),
        Route("/v1/completions", AnswerApp(worker, COMPLETION), methods=["POST"]),
        Route("/v1/models", paths.models),
    ]
    routes = [
        *openai,
        Route("/v1/messages", DialectApp(worker, MessagesDialect(block_tokens)), methods=["POST"]),
        Route("/v1/responses", DialectApp(worker, ResponsesDialect(block_tokens)), methods=["POST"]),
        Route("/tokenize", paths.tokenize, methods=["POST"]),
        Route("/detokenize", paths.detokenize, methods=["POST"]),
        Route("/health", paths.health),
        Route("/ping", paths.health, methods=["GET", "POST"]),
        Route("/version", paths.version),
        Route("/load", paths.load),
        Route("/metrics", paths.metrics),
        Route("/kv_event_sources", paths.kv_event_sources),
    ]
    if worker.settings.dev_mode:
        routes += [
            Route("/reset_prefix_cache", paths.reset_prefix_cache, methods=["POST"]),
            Route("/pause", paths.pause, methods=["POST"]),
            Route("/resume", paths.resume, methods=["POST"]),
            Route("/is_paused", paths.is_paused),
            Route("/sleep", paths.sleep, methods=["POST"]),
            Route("/wake_up", paths.wake_up, methods=["POST"]),
            Route("/is_sleeping", paths.is_sleeping),
            Route("/server_info", paths.server_info),
        ]
    if worker.transfers.enabled:
        routes.append(Route(SIDE_CHANNEL, paths.side_channel, methods=["POST"]))
    if isinstance(worker.transfers, MooncakeTransfers):
        routes.append(Route(BOOTSTRAP_PATH, paths.bootstrap))
    if worker.peer_tier is not None:
        routes.append(Route(PEER_LOOKUP, paths.peer_lookup, methods=["POST"]))
    if worker.settings.runtime_lora:
        routes += [
            Route("/v1/load_lora_adapter", paths.load_lora_adapter, methods=["POST"]),
            Route("/v1/unload_lora_adapter", paths.unload_lora_adapter, methods=["POST"]),
        ]
    if worker.settings.deaths:
        routes.append(Route("/death", paths.death, methods=["POST"]))
    if worker.settings.openai_only:
        routes = openai
    handlers: dict[Any, Any] = {
        ApiError: _api_error,
        HTTPException: _http_error,
        ClientDisconnect: _client_left,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _error_response(error: ApiError) -> Response:
    return Response(error.body(), status_code=int(error.status), media_type="application/json")


async def _api_error(_request: Request, error: ApiError) -> Response:
    return _error_response(error)


async def _http_error(_request: Request, error: HTTPException) -> Response:
    return _error_response(ApiError(error.detail, status=HTTPStatus(error.status_code)))


async def _client_left(_request: Request, _error: ClientDisconnect) -> Response:
    return Response(status_code=int(HTTPStatus.BAD_REQUEST))


async def _json_object(request: Request) -> dict[str, Any]:
    return read_object(await request.body(), request.headers.get("content-type", ""))


class _Paths:
    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker

    async def models(self, _request: Request) -> Response:
        worker = self._worker
        root = str(worker.settings.folder.resolve())
        cards = [self._card(worker.settings.model_name, root, None, worker.max_model_len)]
        cards += [
            self._card(name, worker.adapters[name] or name, worker.settings.model_name, None)
            for name in worker.adapters
        ]
        return JSONResponse({"object": "list", "data": cards})

    def _card(self, name: str, root: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": int(self._worker.started_unix_s)}
        if self._worker.settings.openai_only:
            return {**card, "owned_by": "nobody"}
        return {
            **card,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": max_model_len,
            "permission": [],
        }

    async def tokenize(self, request: Request) -> Response:
        values = await _json_object(request)
        body = read_body(TokenizeChatBody, values) if "messages" in values else read_body(TokenizeBody, values)
        self._worker.adapter(body.model)
        prompts = self._worker.prompts
        if isinstance(body, TokenizeBody):
            ids = await prompts.text(body.prompt, body.add_special_tokens)
        else:
            ids = await prompts.chat(values, body.add_special_tokens)
        return JSONResponse(
            {
                "count": len(ids),
                "max_model_len": self._worker.max_model_len,
                "tokens": ids,
                "token_strs": prompts.strings(ids) if body.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        body = read_body(DetokenizeBody, await _json_object(request))
        self._worker.adapter(body.model)
        prompts = self._worker.prompts
        return JSONResponse({"prompt": prompts.decode(prompts.ids(body.tokens, "tokens"))})

    async def health(self, _request: Request) -> Response:
        status = HTTPStatus.OK if self._worker.alive else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status_code=int(status))

    async def version(self, _request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def load(self, _request: Request) -> Response:
        return JSONResponse({"server_load": self._worker.server_load})

    async def metrics(self, _request: Request) -> Response:
        return Response(self._worker.metrics.exposition(), media_type="text/plain; version=0.0.4")

    async def kv_event_sources(self, _request: Request) -> Response:
        endpoints, settings = self._worker.event_endpoints, self._worker.settings
        if endpoints is None:
            return JSONResponse({})
        # vLLM shows an address that listens everywhere in this form.
        endpoint, replay_endpoint = (
            address.replace("//0.0.0.0:", "//*:").replace("//[::]:", "//*:") for address in endpoints
        )
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay_endpoint,
            "buffer_steps": settings.kv_events_buffer_steps,
            "hwm": settings.kv_events_hwm,
            "max_queue_size": settings.kv_events_hwm,
            "topic": settings.kv_events_topic,
        }
        return JSONResponse({"0": source})

    async def reset_prefix_cache(self, _request: Request) -> Response:
        return JSONResponse({"success": self._worker.engine.reset_prefix_cache()})

    async def sleep(self, request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in ("0", "1", "2"):
            raise ApiError(f"level is {level!r}; it must be 0, 1 or 2.", param="level")
        if (mode := request.query_params.get("mode", "abort")) != "abort":
            raise ApiError(f"mode is {mode!r}; this simulated worker knows abort only.", param="mode")
        self._worker.sleep(int(level))
        return Response()

    async def wake_up(self, _request: Request) -> Response:
        self._worker.wake_up()
        return Response()

    async def pause(self, request: Request) -> Response:
        query = request.query_params
        try:
            mode = msgspec.convert(query.get("mode", "abort"), PauseMode)
            clear_cache = msgspec.convert(query.get("clear_cache", "true"), bool, strict=False)
        except msgspec.ValidationError as error:
            raise ApiError(f"{error}.", status=HTTPStatus.UNPROCESSABLE_ENTITY) from None
        await self._worker.pause(mode, clear_cache)
        return JSONResponse({"status": "paused"})

    async def resume(self, _request: Request) -> Response:
        self._worker.resume()
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, _request: Request) -> Response:
        return JSONResponse({"is_paused": self._worker.pause_mode is not None})

    async def death(self, request: Request) -> Response:
        self._worker.death.plan(read_body(DeathBody, await _json_object(request)))
        return Response()

    async def load_lora_adapter(self, request: Request) -> Response:
        body = read_body(LoadAdapterBody, await _json_object(request))
        self._worker.load_adapter(body.lora_name, body.lora_path, in_place=body.load_inplace)
        return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_lora_adapter(self, request: Request) -> Response:
        body = read_body(UnloadAdapterBody, await _json_object(request))
        self._worker.unload_adapter(body.lora_name)
        return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def server_info(self, request: Request) -> Response:
        """Describe connector, model and limits, as far as vLLM's answer to ``config_format=json`` does."""
        settings = self._worker.settings
        name = settings.kv_connector
        transfer = None
        if name is not None:
            extra: dict[str, object] = {"kv_lease_duration": settings.kv_lease_s} if name == "nixl_pull" else {}
            transfer = {
                "kv_connector": CONNECTORS[name].vllm_names[0],
                "kv_role": "kv_both",
                "kv_load_failure_policy": "fail",
                "kv_connector_extra_config": extra,
            }
        host, port = self._worker.transfers.address
        answer = {
            "vllm_config": {
                "kv_transfer_config": transfer,
                "model_config": {"model": str(settings.folder), "dtype": "torch.bfloat16", "quantization": None},
                "cache_config": {"block_size": self._worker.engine.block_size, "cache_dtype": "auto"},
                "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
                "scheduler_config": dict(self._worker.batch_limits),
            },
            "vllm_env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": port},
        }
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def side_channel(self, request: Request) -> Response:
        call = read_body(SideChannelCall, await _json_object(request))
        return Response(msgspec.json.encode(self._worker.transfers.answer(call)), media_type="application/json")

    async def bootstrap(self, _request: Request) -> Response:
        host, port = self._worker.transfers.address
        engine = {
            "engine_id": self._worker.transfers.engine_id,
            "worker_addr": {"0": {"0": f"tcp://{host}:{port}"}},
        }
        return JSONResponse({"0": engine})

    async def peer_lookup(self, request: Request) -> Response:
        lookup, tier = read_body(PeerLookup, await _json_object(request)), self._worker.peer_tier
        assert tier is not None
        return Response(msgspec.json.encode(tier.answer(lookup)), media_type="application/json")

    async def is_sleeping(self, _request: Request) -> Response:
        return JSONResponse({"is_sleeping": self._worker.sleep_level is not None})
