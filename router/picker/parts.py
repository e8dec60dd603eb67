"""The parts of a started picker: those of every front, as `router.gateway.assembly` connects them, and its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from backends.vllm.control import WorkerClient
from router.config.model import LimitsConfig, ModelConfig, RouteConfig, TenantConfig
from router.picker.pairs import SidecarPlans
from router.picker.pools.pool_objects import PoolObjects
from router.picker.pools.saturation import Saturation
from router.picker.predicted_ends import PredictedEnds
from router.picker.request_headers import pool_of
from router.placement.tickets import Ticket
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.front import FrontContext
from router.requests.identify.stage import IdentifyStage
from router.requests.incoming import IncomingRequest
from router.requests.layer import Feature, Features
from router.requests.layers.classes.layer import RequestClasses
from router.requests.layers.classes.shadow import ClassShadow
from router.requests.layers.limits.layer import Limits
from router.requests.layers.route_queue.layer import RouteQueues
from router.requests.placing import PlacementGate
from router.requests.preview import Preview
from router.requests.queues.in_progress import InProgress
from router.requests.queues.request import WaitingRequest
from router.requests.request_ids import RequestIds
from router.requests.routes import ModelSource
from router.requests.worker_keys import worker_keys
from router.security.callers import Callers
from router.security.keys import api_keys
from router.tokenization.body.parsed_body import ParsedBody

_OTHER = "other"


class PickInProgress(WaitingRequest, Protocol):
    """A request that is waited for, or whose load is kept."""

    ticket: Ticket | None

    def cancel(self) -> None: ...


class PickerParts:
    def __init__(self, context: FrontContext, loop: asyncio.AbstractEventLoop) -> None:
        config, fleet, core, metrics = context.config, context.fleet, context.core, context.metrics
        self.config, self.settings, self.metrics = config, config.picker, metrics
        self.loop, self.time = loop, loop.time
        self.fleet, self.identity = fleet, context.identity
        self.tickets, self.dispatcher = core.tickets, core.dispatcher
        self.max_requests = config.limits.max_concurrent_requests or sys.maxsize
        self.picks = context.registry.counter("picks")
        self.keys = api_keys(config.auth)
        self.callers = Callers(config)
        self.bodies = BodyBufferLimit(config.limits)
        context.identity.charge_to(self.bodies)
        core.defer_notes_with(self._note_soon)
        self.worker_keys = worker_keys(config, guarded=self.keys is not None)
        client = WorkerClient(tls=context.worker_tls.context_for, via=context.instance.name)
        self.identifier = IdentifyStage(
            config, context.identity, fleet, metrics.identify, loop, self.worker_keys, client
        )
        self.requests = InProgress(config, fleet, core.tickets, loop, metrics.worker_deaths)
        self.running: set[PickInProgress] = self.requests.running
        features: list[Feature] = [RouteQueues(loop), Limits(core.tickets)]
        enforced = config.classes and config.admission == "enforce"
        self.classes = RequestClasses(config, core, fleet, loop) if enforced else None
        if config.classes:
            features.append(self.classes or ClassShadow(config, core, fleet))
        self.features = Features(features, config.routes)
        self.objects = PoolObjects(config.picker)
        self.saturation = Saturation(config, fleet, core)
        self.identifier.models.rewrite = self._rewritten
        self.request_ids = RequestIds()
        self.preview = Preview(self.identifier, self.callers, self.keys, self.request_ids, loop.time, self.classes)
        moves = config.handover.connector is not None or config.handover.pulls is not None
        self.gate = PlacementGate(
            core.dispatcher,
            core.tickets,
            self.requests.quarantine,
            self.requests.no_worker,
            self.requests.hold,
            metrics,
            fleet,
            config.timeouts.queue_s,
            self.features,
            self.identifier.models,
            SidecarPlans(core, loop.time) if moves else None,
            self.classes,
        )
        self.predicted_ends = PredictedEnds(core.tickets.output_lengths, fleet, loop, config.timeouts.total_s)

    def _rewritten(self, incoming: IncomingRequest, parsed: ParsedBody) -> str | None:
        """Return the model that serves in place of the one in the body. All requests of a session get the same one."""
        if parsed.model is None and not (parsed.is_json and incoming.route.model is ModelSource.JSON):
            return None
        session, header = parsed.session_id, incoming.head.fields.get(b"x-session-id")
        if session is None and header is not None:
            session = header.decode("latin-1")
        return self.objects.target(parsed.model, session, pool_of(incoming.within))

    def _note_soon(self, note: Callable[[Any], None], about: Any) -> None:
        """Take notes of a placement after its answer is on its way (`router.placement.defer`)."""
        self.loop.call_soon(note, about)

    def model_label(self, model: str | None) -> str:
        """Return the label of a model in metrics: a name that a worker lists, or else "other"."""
        return "" if not model else model if self.fleet.models.lists(model) else _OTHER

    def use_routes(self, routes: Sequence[RouteConfig]) -> None:
        self.identifier.routes.adopt(routes)
        self.features.adopt(routes)

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        self.identifier.use_models(models)
        self.requests.no_worker.changed()

    def use_callers(self, tenants: Mapping[str, TenantConfig], limits: LimitsConfig) -> None:
        self.callers.adopt(tenants, limits)

    def close(self) -> None:
        self.predicted_ends.close()
        for pick in list(self.running):
            pick.cancel()
        self.identifier.search.close()
        self.requests.close()
        self.features.close()

    def limits(self) -> list[dict[str, Any]]:
        return self.callers.limits(self.keys.names if self.keys is not None else None, self.time())

    def statistics(self) -> dict[str, Any]:
        return {
            **self.requests.statistics(),
            **self.features.statistics(),
            "predicted_ends": len(self.predicted_ends),
            "buffered_body_bytes": self.bodies.used_bytes,
            "bodies_refused": self.bodies.refused,
            "rewrites": self.identifier.statistics(),
            "objects": self.objects.statistics(),
            "tenants": self.callers.statistics(),
            "api_keys": self.keys.statistics() if self.keys is not None else None,
        }
