"""Finds the model of a request by the operator's names, and the same request for the fallbacks of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from router.errors import ErrorKind, RequestError
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request
from router.requests.incoming import IncomingRequest
from router.requests.model_names import ModelNames
from router.requests.pins import Pins
from router.requests.rewrites.model_name import renamable
from router.requests.routes import ModelSource
from router.residency.prompt import Prompt
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import ParsedBody
from router.tokenization.prompt_identifier import PromptIdentifier

_LISTED = 10
"""Models that an error names."""
PARSED_AGAIN_BYTES = 262_144
"""Up to this size a body is identified again for a fallback. A larger one is placed there by load alone."""


class ModelChoice:
    """Applies `ModelNames` to requests. `renamed` counts the requests that got the name of another model."""

    def __init__(self, names: ModelNames, fleet: Fleet, identity: PromptIdentifier, pins: Pins) -> None:
        self._names = names
        self._fleet = fleet
        self._identity = identity
        self._pins = pins
        self.rewrite: Callable[[IncomingRequest, ParsedBody], str | None] | None = None
        """Returns the model by which a front replaces the one that a body names; None for none."""
        self.renamed = 0

    @property
    def falls_back(self) -> bool:
        return self._names.falls_back

    def has_fallback(self, request: Request) -> bool:
        return request.pinned is None and bool(self._names.fallbacks(request.model))

    def serving(self, name: str | None) -> tuple[str, ...]:
        if name is None:
            return ()
        model = self._names.target(name)
        return model, *self._names.fallbacks(model)

    def name(self, incoming: IncomingRequest, parsed: ParsedBody, *, counted: bool = True) -> None:
        """Put the name of the model that serves the request into `parsed` and into the request.

        `counted`: a changed request counts in `renamed`.

        Raises:
            RequestError: MODEL_REQUIRED; INVALID_BODY, since the body cannot be changed with certainty.
        """
        name = incoming.named = parsed.model
        incoming.form = parsed.form
        instead = name if self.rewrite is None else self.rewrite(incoming, parsed) or name
        model = self._names.target(instead) if instead is not None else self._unnamed(incoming, parsed)
        if model is None or model == name:
            return
        if parsed.is_json or incoming.route.model is not ModelSource.JSON:
            incoming.rename(model)
            incoming.withheld = incoming.caller.withheld_salted
            self.renamed += counted
        incoming.named = parsed.model = model

    def _unnamed(self, incoming: IncomingRequest, parsed: ParsedBody) -> str | None:
        """Return the model of a request that names none; None if any worker, or the one it is pinned to, may serve it.

        A body that is not JSON goes to a worker, whose error explains the mistake.
        """
        route, previous = incoming.route, parsed.previous_response_id
        if route.extra or route.model is ModelSource.NONE:
            return None
        if route.model is not ModelSource.QUERY and not incoming.body:
            return None
        if previous is not None and self._pins.worker(previous) is not None:
            return None
        if self._names.default is not None or (route.model is ModelSource.JSON and not parsed.is_json):
            return self._names.default
        within, known = incoming.within, self._fleet.models
        models = known.different if within is None else known.among(within)
        if len(models) > 1:
            listed = ", ".join(models[:_LISTED])
            more = f", and {len(models) - _LISTED} more" if len(models) > _LISTED else ""
            message = f"The request names no `model`, and this fleet serves several: {listed}{more}."
            raise RequestError(ErrorKind.MODEL_REQUIRED, message, param="model")
        return None

    def instead(self, incoming: IncomingRequest, request: Request) -> Iterator[Request]:
        """Yield the request for each fallback of its model. A stored response is on one worker, and has none."""
        models = self._names.fallbacks(request.model) if request.pinned is None else ()
        if not models or not renamable(incoming.route, incoming.body, incoming.form):
            return
        known = incoming.alternatives
        if known is None:
            known = incoming.alternatives = {}
        for model in models:
            if model not in known:
                prompt = self._prompt(incoming, request, model)
                tokens = request.prompt_tokens if prompt is None else prompt.tokens
                known[model] = msgspec.structs.replace(request, model=model, prompt=prompt, prompt_tokens=tokens)
            yield known[model]

    def _prompt(self, incoming: IncomingRequest, request: Request, model: str) -> Prompt | None:
        """Identify the prompt for another model, if that is quick; None places the request by load alone."""
        if request.prompt is None or len(incoming.body) > PARSED_AGAIN_BYTES:
            return None
        try:
            parsed = parse(request.path, incoming.body)
        except RequestError:
            return None
        parsed.model = model
        prompt = self._identity.identify_now(request.path, parsed, self._fleet.models.adapter(model))
        parsed.release()
        return prompt if isinstance(prompt, Prompt) else None
