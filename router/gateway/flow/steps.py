"""The step that carries out each effect of the flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from router.gateway.flow import answer_steps, placement_steps, resuming
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.services import Follows, GatewayServices
from router.gateway.flow.transitions import ASKS, Effect

_PLACE: Final[dict[Effect, Callable[[GatewayServices, OutboundRequest, Any], Follows]]] = {
    Effect.PLACE: placement_steps.place,
    Effect.NEXT_LEG: placement_steps.next_leg,
    Effect.RETRY: placement_steps.retry,
    Effect.RESUME: resuming.resume,
}
assert _PLACE.keys() == ASKS
_WRITE: Final[dict[Effect, Callable[[GatewayServices, OutboundRequest, Any], None]]] = {
    Effect.SEND: placement_steps.send,
    Effect.RESPOND: answer_steps.respond,
    Effect.FINISH: answer_steps.finish,
    Effect.FINISH_LEG: answer_steps.finish_leg,
    Effect.FAIL: answer_steps.fail,
    Effect.CANCEL: answer_steps.cancel,
    Effect.COMPLETE: answer_steps.complete,
    Effect.PASS_ERROR: answer_steps.pass_error,
    Effect.SWITCH: answer_steps.switch,
    Effect.COMMENT: answer_steps.comment,
    Effect.REPLY: answer_steps.reply,
    Effect.BREAK_OFF: answer_steps.break_off,
    Effect.ABORT_CLIENT: answer_steps.abort_client,
}
STEPS: Final = tuple(_PLACE.get(effect, _WRITE.get(effect)) for effect in Effect)
"""By effect; None for those that the driver carries out itself: the queues and the end."""
