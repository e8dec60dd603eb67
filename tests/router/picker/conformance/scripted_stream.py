"""One stream of a scripted picker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.wrappers_pb2 import BoolValue

from router.picker.conformance.requests import BUFFERED, FULL_DUPLEX, NONE, STREAMED
from router.picker.protocol import ext_proc_pb2 as wire
from router.picker.protocol.names import (
    DESTINATION,
    DP_RANK_HOST,
    DROP_REASON,
    LB_NAMESPACE,
    OBJECTIVE,
    OLD_OBJECTIVE,
    PD_HEADERS,
    PREFER,
    PREFILLER,
    SCORES,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
    TESTING,
)
from tests.router.picker.conformance.scripted_pool import (
    ADAPTERS,
    ELSEWHERE,
    ENDPOINTS,
    PREFILL,
    PRIORITIES,
    ScriptedPool,
)

OVERWRITE = wire.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
LONG_BYTES = 10_000


class Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class ScriptedStream:
    def __init__(self, pool: ScriptedPool) -> None:
        self.pool = pool
        self.manners = pool.manners
        self.headers: dict[str, str] = {}
        self.subset: list[str] | str | None = None
        self.mode = BUFFERED
        self.body = bytearray()
        self.bodied = False
        self.decided = False
        self.counted = False
        self.responded = False
        self.booked = ""
        self.observed = False
        self.compressed = False
        self.event = b""
        self.response = bytearray()

    async def answers(self, message: wire.ProcessingRequest) -> AsyncIterator[wire.ProcessingResponse]:
        kind = message.WhichOneof("request")
        self.observed = self.observed or message.observability_mode
        if self.observed and not self.manners.answers_observed:
            return
        async for answer in getattr(self, f"_{kind}")(message):
            yield answer

    # the request

    async def _request_headers(self, message: wire.ProcessingRequest) -> AsyncIterator[wire.ProcessingResponse]:
        self._read_headers(message)
        self.bodied = not message.request_headers.end_of_stream
        if not self.bodied or self.mode == NONE:
            wanted = self.manners.picks_without_body if not self.bodied else not self.manners.needs_body
            yield await self._decision() if wanted else headers_answer()
        elif self.mode == STREAMED:
            yield await self._decision()
        elif self.mode == BUFFERED or self.manners.answers_early:
            yield headers_answer()

    def _read_headers(self, message: wire.ProcessingRequest) -> None:
        manners = self.manners
        for header in message.request_headers.headers.headers:
            if manners.rejects_capitals and header.key != header.key.lower():
                raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "a header key in capitals")
            value = header.raw_value.decode(errors="replace") or header.value
            self.headers.setdefault(header.key.lower(), value)
        if message.HasField("protocol_config"):
            self.mode = message.protocol_config.request_body_mode
        elif manners.needs_protocol_config:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "no protocol_config")
        if manners.needs_send_at_once and not message.protocol_config.send_body_without_waiting_for_header_response:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the body must be sent at once")
        if manners.rejects_attributes and message.attributes:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "attributes")
        known = wire.ProcessingRequest()
        known.CopyFrom(message)
        known.DiscardUnknownFields()
        if manners.rejects_unknown_fields and known.ByteSize() != message.ByteSize():
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "an unknown field")
        namespaces = [SUBSET_NAMESPACE, *([LB_NAMESPACE] if manners.any_namespace else [])]
        for namespace in namespaces:
            found = MessageToDict(message.metadata_context.filter_metadata[namespace]).get(SUBSET)
            self.subset = self.subset if found is None else found

    async def _request_body(self, message: wire.ProcessingRequest) -> AsyncIterator[wire.ProcessingResponse]:
        piece, ends = message.request_body.body, message.request_body.end_of_stream
        if self.mode == STREAMED:
            yield body_answer(
                wire.CommonResponse(), streamed=piece if self.manners.echoes_streamed else None, ends=ends
            )
        elif self.decided:
            if self.manners.answers_second_end and ends:
                for answer in self._echo(b"", True):
                    yield answer
        else:
            self._collect(piece)
            if ends and not (self.manners.ends_on_body_only and not piece and self.body):
                async for answer in self._body_decision(ends=True):
                    yield answer

    def _collect(self, piece: bytes) -> None:
        if self.manners.decodes_pieces:
            piece = piece.decode(errors="replace").encode()
        if not (self.manners.drops_small_pieces and len(piece) == 1):
            self.body += piece

    async def _request_trailers(self, message: wire.ProcessingRequest) -> AsyncIterator[wire.ProcessingResponse]:
        if not self.manners.ignores_trailers:
            async for answer in self._body_decision(ends=False):
                yield answer
            yield wire.ProcessingResponse(request_trailers=wire.TrailersResponse())

    async def _body_decision(self, ends: bool) -> AsyncIterator[wire.ProcessingResponse]:
        decision = await self._decision()
        if decision.HasField("immediate_response"):
            yield decision
        elif self.mode == BUFFERED:
            common = decision.request_headers.response
            echoed = bytes(self.body) if self.manners.echoes_buffered else None
            answer = body_answer(common, streamed=echoed, ends=True)
            answer.dynamic_metadata.CopyFrom(decision.dynamic_metadata)
            yield answer
        else:
            assert self.mode == FULL_DUPLEX
            order = [decision, *self._echo(bytes(self.body), ends)]
            for answer in reversed(order) if self.manners.body_first else order:
                yield answer

    def _echo(self, body: bytes, ends: bool) -> Iterator[wire.ProcessingResponse]:
        manners = self.manners
        body = body[:-1] if manners.spoils_bytes else body
        step = manners.chunk_bytes
        pieces = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        for number, piece in enumerate(pieces, 1):
            common = wire.CommonResponse()
            if manners.picks_on_body:
                common.header_mutation.set_headers.append(header(DESTINATION, ENDPOINTS[0]))
            streamed = None if manners.plain_body_answers else piece
            yield body_answer(common, streamed=streamed, ends=ends and number == len(pieces))
        if manners.ends_twice:
            yield body_answer(wire.CommonResponse(), streamed=b"", ends=True)

    # the pick

    async def _decision(self) -> wire.ProcessingResponse:
        pool, manners = self.pool, self.manners
        self.decided = True
        if manners.needs_length and self.bodied and "content-length" not in self.headers:
            return refusal(411, "no length")
        if (
            self.headers.get(PREFER) == "if-available"
            and manners.reads_prefer
            and bytes(self.body) not in pool.known_prompts
        ):
            return refusal(412, "not in cache")
        if pool.saturated:
            await self._pass_admission()
            if self.refused is not None:
                return self.refused
        await asyncio.sleep(manners.delay_s)
        eligible = pool.eligible(self.subset, self.bodied)
        model = self._rewrite()
        if model in ADAPTERS and manners.knows_adapters:
            eligible = [endpoint for endpoint in eligible if endpoint == ADAPTERS[model]]
        if not eligible:
            if manners.aborts_without_endpoints:
                raise Aborted(grpc.StatusCode.UNAVAILABLE, "no endpoints")
            return refusal(503, "no endpoint")
        picks = pool.choose(eligible, bytes(self.body) if self.bodied else None)
        if manners.obeys_testing_header and TESTING in self.headers:
            picks = [self.headers[TESTING]]
        pool.known_prompts.add(bytes(self.body))
        self._book(picks[0])
        return self._pick(picks)

    refused: wire.ProcessingResponse | None = None

    async def _pass_admission(self) -> None:
        manners = self.manners
        names = [OBJECTIVE, *([OLD_OBJECTIVE] if manners.reads_old_names else [])]
        named = next((self.headers[name] for name in names if name in self.headers), "")
        priority = PRIORITIES.get(named, 0) if manners.honours_objectives else 0
        if (priority < 0 and manners.sheds) or manners.sheds_all:
            self.refused = refusal(
                *(429, "saturated"),
                **{
                    DROP_REASON: manners.drop_reason,
                    "retry-after": manners.retry_after,
                    "content-type": manners.error_type,
                },
            )
            return
        if manners.forgets_cancelled:
            self.pool.ledger[ENDPOINTS[0]] += 1
        await self.pool.wait_for_turn(priority)

    def _rewrite(self) -> str:
        """Return the model, after a rewrite of the body."""
        try:
            document = json.loads(bytes(self.body))
            model = str(document["model"])
        except (ValueError, KeyError, TypeError):
            return ""
        target = self.pool.target_of(model)
        if target is not None:
            self.body = bytearray(json.dumps({**document, "model": target}).encode())
        return model

    def _pick(self, picks: list[str]) -> wire.ProcessingResponse:
        manners = self.manners
        text = ",".join(self._spelt(pick) for pick in picks)
        answer = headers_answer(manners.clears_route_cache)
        mutation = answer.request_headers.response.header_mutation
        if manners.destination_header:
            mutation.set_headers.append(self._destination(text))
        if manners.destination_metadata:
            listed = list(reversed(text.split(","))) if manners.metadata_reversed else text.split(",")
            said = ELSEWHERE if manners.metadata_differs else ",".join(listed)
            values: dict[str, Any] = {DESTINATION: [said] if manners.metadata_is_list else said, SCORES: self._scores()}
            answer.dynamic_metadata.update({LB_NAMESPACE: values})
        if self.bodied and self.mode == FULL_DUPLEX:
            mutation.set_headers.append(header("content-length", str(len(self.body) + manners.wrong_length)))
        self._set_pd_headers(mutation, picks[0])
        return answer

    def _spelt(self, endpoint: str) -> str:
        return endpoint.replace("[", "").replace("]", "") if self.manners.bare_ipv6 else endpoint

    def _scores(self) -> dict[str, Any]:
        return dict.fromkeys(ENDPOINTS, 0.5 if self.manners.scores_are_numbers else "high")

    def _destination(self, text: str) -> wire.HeaderValueOption:
        if self.manners.value_only:
            return wire.HeaderValueOption(header=wire.HeaderValue(key=DESTINATION, value=text))
        option = header(DESTINATION, text)
        if self.manners.appends:
            option.append.CopyFrom(BoolValue(value=True))
        return option

    def _set_pd_headers(self, mutation: wire.HeaderMutation, pick: str) -> None:
        manners = self.manners
        if manners.removes_pd_headers:
            mutation.remove_headers.extend(PD_HEADERS)
        rank = ELSEWHERE if manners.rank_elsewhere else pick
        mutation.set_headers.append(header(DP_RANK_HOST, rank))
        long = len(self.body) > LONG_BYTES or manners.prefills_short_prompts
        if long and manners.sets_prefiller:
            mutation.set_headers.append(header(PREFILLER, PREFILL[0]))

    def _book(self, endpoint: str) -> None:
        self.release()
        self.booked = endpoint
        self.pool.ledger[endpoint] += 1

    def release(self) -> None:
        if self.booked:
            self.pool.ledger[self.booked] -= 1
        self.booked = ""

    # the response

    async def _response_headers(self, message: wire.ProcessingRequest) -> AsyncIterator[wire.ProcessingResponse]:
        manners, pool = self.manners, self.pool
        if not self.decided and manners.breaks_on_response_alone:
            pool.manners = self.manners.__class__(destination_header=False)
            raise Aborted(grpc.StatusCode.INTERNAL, "no request")
        values = {one.key: one.raw_value.decode() for one in message.response_headers.headers.headers}
        self.compressed = "content-encoding" in values
        if values[":status"].startswith("5") and manners.counts_errors:
            pool.errors[self.booked] += 1
        served = MessageToDict(message.metadata_context.filter_metadata[LB_NAMESPACE]).get(SERVED)
        if served and manners.follows_served:
            self._book(served)
        mutation = wire.HeaderMutation(set_headers=[header(":status", "203")] if manners.changes_status else [])
        common = wire.CommonResponse(header_mutation=mutation)
        yield wire.ProcessingResponse(response_headers=wire.HeadersResponse(response=common))
        self.responded = message.response_headers.end_of_stream
        if self.responded and manners.ends_with_error:
            raise Aborted(grpc.StatusCode.INTERNAL, "the end")

    async def _response_body(self, message: wire.ProcessingRequest) -> AsyncIterator[wire.ProcessingResponse]:
        piece, ends = message.response_body.body, message.response_body.end_of_stream
        self.response += piece
        if self.compressed and self.manners.decodes_responses:
            piece = piece.decode(errors="replace").encode()
        if self.manners.holds_events:
            self.event, piece = (b"", self.event + piece) if ends else (piece, self.event)
        if piece or ends:
            streamed = wire.StreamedBodyResponse(body=piece, end_of_stream=ends)
            common = wire.CommonResponse(body_mutation=wire.BodyMutation(streamed_response=streamed))
            yield wire.ProcessingResponse(response_body=wire.BodyResponse(response=common))
        if ends and self.manners.reads_usage:
            self._read_usage()

    def _read_usage(self) -> None:
        for event in bytes(self.response).split(b"\n\n"):
            if b'"usage"' in event:
                usage = json.loads(event.removeprefix(b"data: "))["usage"]
                self.pool.usage[self.booked] += usage["completion_tokens"]

    async def _response_trailers(self, message: wire.ProcessingRequest) -> AsyncIterator[wire.ProcessingResponse]:
        if self.manners.answers_response_trailers:
            yield wire.ProcessingResponse(response_trailers=wire.TrailersResponse())


def header(name: str, value: str) -> wire.HeaderValueOption:
    return wire.HeaderValueOption(header=wire.HeaderValue(key=name, raw_value=value.encode()), append_action=OVERWRITE)


def headers_answer(clears: bool = False) -> wire.ProcessingResponse:
    common = wire.CommonResponse(clear_route_cache=clears)
    return wire.ProcessingResponse(request_headers=wire.HeadersResponse(response=common))


def body_answer(common: wire.CommonResponse, streamed: bytes | None, ends: bool) -> wire.ProcessingResponse:
    if streamed is not None:
        part = wire.StreamedBodyResponse(body=streamed, end_of_stream=ends)
        common.body_mutation.CopyFrom(wire.BodyMutation(streamed_response=part))
    return wire.ProcessingResponse(request_body=wire.BodyResponse(response=common))


def refusal(status: int, text: str, **headers: str) -> wire.ProcessingResponse:
    mutation = wire.HeaderMutation(set_headers=[header(name, value) for name, value in headers.items()])
    body = json.dumps({"error": {"message": text}}).encode()
    return wire.ProcessingResponse(
        immediate_response=wire.ImmediateResponse(status=wire.HttpStatus(code=status), headers=mutation, body=body)
    )
