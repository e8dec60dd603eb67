"""What a body says about sampling, as the sampler and the detokeniser read it."""

from __future__ import annotations

from backends.simulated.decoding.detokenizer import StopStrings
from backends.simulated.decoding.draws import seeded_draws
from backends.simulated.errors import ApiError
from backends.simulated.generation import Sampling
from backends.simulated.request import ChatBody, CompletionBody


def read_sampling(body: ChatBody | CompletionBody, eos_id: int | None) -> Sampling:
    eos_id = None if body.ignore_eos else eos_id
    stop_ids = frozenset(body.stop_token_ids or ()) | ({eos_id} if eos_id is not None else set())
    return Sampling(seeded_draws(body.temperature, body.seed), stop_ids, eos_id, body.min_tokens or 0)


def read_stops(body: ChatBody | CompletionBody) -> StopStrings | None:
    """Return the stop strings of a body, None without any; raises `ApiError` 400 for an empty one."""
    strings = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in strings:
        raise ApiError("stop cannot contain an empty string.", param="stop")
    if not strings:
        return None
    return StopStrings(strings, bool(body.include_stop_str_in_output), body.min_tokens or 0)
