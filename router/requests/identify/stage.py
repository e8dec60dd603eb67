"""Read a request's body, admit it and identify its prompt, so that the dispatcher can place it.

Each of the two steps is done in line where that takes little time (`read_now`, `identify_now`). What they return says
whether the rest has to be awaited, in a task of the caller's: a large body, a stored response that nobody knows, a
tokenizer's thread or a worker's /tokenize.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from backends.vllm.control import WorkerClient
from policies.view import WorkerId
from router.config.model import Config, ModelConfig
from router.config.on_request import OnRequest
from router.errors import ErrorKind, RequestError
from router.metrics.instruments import Histogram
from router.placement.fleet.fleet import Fleet
from router.placement.policies.traffic_routes import RouteFacts, TrafficRoutes
from router.placement.request import Request, SessionKind
from router.requests.admission import admit
from router.requests.identify.model_choice import ModelChoice
from router.requests.identify.reading import read_in_slices, read_request, reads_at_once, reads_quickly
from router.requests.incoming import IncomingRequest
from router.requests.model_names import ModelNames
from router.requests.pins import Pins
from router.requests.request_head import RequestHead
from router.requests.response_search import ResponseSearch, may_be_stored
from router.requests.rewrites.json_splice import salted
from router.requests.routes import RouteTable
from router.requests.time_slices import TimeSlices
from router.requests.worker_keys import WorkerKeys
from router.residency.prompt import Prompt
from router.tokenization.body.intake import UnreadBody
from router.tokenization.body.parsed_body import ParsedBody
from router.tokenization.prompt_identifier import PendingPrompt, PromptIdentifier

# Estimates the tokens of a body that is not parsed: English text has about four bytes per token.
_BYTES_PER_TOKEN = 4
EXPECTED_OUTPUT = b"x-warmroute-expected-output-tokens"
"""Request header: the expected length of the answer in tokens, if the client knows it."""
_FEW_DIGITS = re.compile(rb"[0-9]{1,9}")
# Module constants, because looking up a member of an enum is slow.
_SINGLE: Final = SessionKind.SINGLE
_CONVERSATION: Final = SessionKind.CONVERSATION


class Salter:
    """Adds the cache salts of tenants to bodies, which isolates their caches."""

    def __init__(self) -> None:
        self.salted = 0

    def salt(self, body: bytes, salt: str, *, counted: bool = True) -> bytes:
        """Return `body` with the salt.

        Raises:
            RequestError: the salt cannot be added with certainty.
        """
        self.salted += counted
        return salted(body, salt)


class IdentifyStage:
    """Reads, admits and identifies requests, at once if possible."""

    def __init__(
        self,
        config: Config,
        identity: PromptIdentifier,
        fleet: Fleet,
        durations: Histogram,
        loop: asyncio.AbstractEventLoop,
        keys: WorkerKeys | None,
        client: WorkerClient,
    ) -> None:
        self.identity = identity
        self.fleet = fleet
        self.durations = durations
        self.loop = loop
        self.paths = RouteTable(config.extra_paths)
        self.pins = Pins()
        self.slices = TimeSlices()
        self.salter = Salter()
        self.routes = TrafficRoutes(config.routes)
        self.names = ModelNames(config.models)
        self.models = ModelChoice(self.names, fleet, identity, self.pins)
        self.search = ResponseSearch(fleet, self.pins, keys, client, loop)
        fleet.resolve(OnRequest(config.models))

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        self.names.adopt(models)
        self.fleet.resolve(OnRequest(models))

    def statistics(self) -> dict[str, int]:
        return {"salted": self.salter.salted, "model": self.models.renamed}

    def read_now(self, incoming: IncomingRequest) -> ParsedBody | None:
        """Read and admit the body; None if `read` has to be awaited.

        Raises:
            RequestError: the body is invalid, or the caller may not send it.
        """
        route, body = incoming.route, incoming.body
        if not (reads_quickly(route, body) or (reads_at_once(route, body) and self.slices.take(self.loop))):
            return None
        try:
            parsed = read_request(route, incoming.head, body, self.identity.bodies)
        except UnreadBody:
            return None
        if self._unknown_response(incoming, parsed) is not None:
            return None
        self._admit(incoming, parsed)
        return parsed

    async def read(self, incoming: IncomingRequest, *, counted: bool = True) -> ParsedBody:
        """Read and admit the body, at any duration. `counted`: rewrites of it count in the statistics.

        Raises:
            RequestError: as `read_now`; or it is not certain whether a worker has the stored response.
        """
        parsed = await read_in_slices(incoming.route, incoming.head, incoming.body, self.slices, self.identity.bodies)
        response_id = self._unknown_response(incoming, parsed)
        if response_id is not None:
            withheld = b"authorization" in incoming.withheld
            credentials = None if withheld else incoming.head.fields.get(b"authorization")
            await self.search.find(response_id, self.models.serving(parsed.model), credentials)
        self._admit(incoming, parsed, counted=counted)
        return parsed

    def identify_now(self, incoming: IncomingRequest, parsed: ParsedBody) -> PendingPrompt | None:
        """Set `incoming.request`; or return what `identify` has to await for it.

        Raises:
            RequestError: the path names an unknown stored response.
        """
        prompt = self._prompt(incoming, parsed)
        if prompt is not None and not isinstance(prompt, Prompt):
            return prompt
        self._identified(incoming, parsed, prompt)
        return None

    async def identify(self, incoming: IncomingRequest, parsed: ParsedBody, pending: PendingPrompt) -> None:
        self._identified(incoming, parsed, await pending())

    def place_by_load(self, incoming: IncomingRequest, parsed: ParsedBody) -> None:
        """Set `incoming.request` without its prompt, because there is no body or no time to identify one.

        Raises:
            RequestError: the path names an unknown stored response.
        """
        self._identified(incoming, parsed, None)

    async def preview(self, incoming: IncomingRequest) -> Request:
        """Return the request that the dispatcher would get. It is not counted in any metric or limit.

        Raises:
            RequestError: as the public port would answer.
        """
        parsed = await self.read(incoming, counted=False)
        prompt = self._prompt(incoming, parsed)
        if prompt is not None and not isinstance(prompt, Prompt):
            prompt = await prompt()
        return self._request(incoming, parsed, prompt)

    def _unknown_response(self, incoming: IncomingRequest, parsed: ParsedBody) -> str | None:
        """Return the id of the stored response that the request is about, if it has to be looked for."""
        response_id = parsed.previous_response_id
        if incoming.route.pinned:
            response_id = self.paths.stored_id(incoming.head.path)
        if response_id is None or self.pins.worker(response_id) is not None or not may_be_stored(response_id):
            return None
        return response_id

    def _admit(self, incoming: IncomingRequest, parsed: ParsedBody, *, counted: bool = True) -> None:
        """Apply the operator's names, check that the caller may send these fields, and add its cache salt.

        A body in UTF-16 or UTF-32 goes on in UTF-8, so that it can be changed.
        """
        caller = incoming.caller
        if parsed.converted and parsed.body is not None:
            incoming.body, incoming.withheld = parsed.body, caller.withheld_salted
        self.models.name(incoming, parsed, counted=counted)
        salt = admit(incoming.route, caller, incoming.body, parsed)
        if salt is not None:
            incoming.body = self.salter.salt(incoming.body, salt, counted=counted)
            incoming.withheld = caller.withheld_salted
        if incoming.route.by_prefix:
            incoming.digest = parsed.digest

    def _prompt(self, incoming: IncomingRequest, parsed: ParsedBody) -> Prompt | PendingPrompt | None:
        if not incoming.route.by_prefix:
            return None
        return self.identity.identify_now(incoming.head.path, parsed, self.fleet.models.adapter(parsed.model))

    def _identified(self, incoming: IncomingRequest, parsed: ParsedBody, prompt: Prompt | None) -> None:
        incoming.request = self._request(incoming, parsed, prompt)
        if incoming.route.by_prefix:
            parsed.release()
            source = prompt.source if prompt is not None else "none"
            self.durations.observe(self.loop.time() - incoming.arrived_s, (source,))

    def _request(self, incoming: IncomingRequest, parsed: ParsedBody, prompt: Prompt | None) -> Request:
        """Return the request for the dispatcher, with its route and policy.

        As in vLLM, a session id in the body overrides the header, and a priority in the header overrides the body.
        """
        head, caller, by_prefix = incoming.head, incoming.caller, incoming.route.by_prefix
        guessed_tokens = incoming.size_bytes // _BYTES_PER_TOKEN if incoming.route.prefills else 0
        session_id = parsed.session_id if by_prefix else None
        if session_id is None and b"x-session-id" in head.fields:
            session_id = head.fields[b"x-session-id"].decode("latin-1")
        request_id = incoming.id.decode("latin-1")
        prompt_tokens = prompt.tokens if prompt is not None else guessed_tokens
        priority = _priority(head, parsed.priority if by_prefix else 0) if "priority" in caller.may else 0
        kind = _SINGLE if session_id is None else _CONVERSATION
        tier = parsed.fields.service_tier if by_prefix else None
        incoming.service_tier = tier if isinstance(tier, str) else None
        route = self.routes.only
        if route is None:
            route = self.routes.match(
                RouteFacts(
                    parsed.model,
                    head.path,
                    head.fields,
                    caller.name,
                    caller.tenant,
                    prompt_tokens,
                    parsed.stream,
                    priority,
                )
            )
        return Request(
            id=request_id,
            path=head.path,
            model=parsed.model,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            arrived_s=incoming.arrived_s,
            max_tokens=parsed.max_tokens if by_prefix else None,
            session_id=session_id,
            priority=priority,
            pinned=self._pinned_to(incoming, parsed),
            stream=parsed.stream,
            reads_cache=parsed.reads_cache,
            answers=parsed.answers,
            kind=SessionKind.AGENT if by_prefix and parsed.has_tools else kind,
            hinted_tokens=_hinted_tokens(head),
            route=route.name,
            policy=route.policy_of(request_id, session_id),
        )

    def _pinned_to(self, incoming: IncomingRequest, parsed: ParsedBody) -> WorkerId | None:
        """Return the worker that holds the stored response that this request is about; None for any worker.

        Raises:
            RequestError: the path names an unknown response. An unknown response in the body is no error here: a
                worker's own answer explains it.
        """
        if not incoming.route.pinned:
            previous = parsed.previous_response_id
            return self.pins.worker(previous) if previous is not None else None
        response_id = self.paths.stored_id(incoming.head.path)
        worker = self.pins.worker(response_id)
        if worker is None:
            raise RequestError(ErrorKind.RESPONSE_NOT_FOUND, f"no worker has response {response_id!r}")
        return worker


def _hinted_tokens(head: RequestHead) -> int | None:
    """Return the expected output tokens that the client gave; None without a valid number."""
    text = head.fields.get(EXPECTED_OUTPUT)
    return int(text) if text is not None and _FEW_DIGITS.fullmatch(text) else None


def _priority(head: RequestHead, in_body: int) -> int:
    text = head.fields.get(b"x-vllm-priority")
    if text is not None:
        try:
            return int(text)
        except ValueError:
            pass
    return in_body
