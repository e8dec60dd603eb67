"""What a request costs the fleet, in seconds of one worker."""

from __future__ import annotations

import msgspec

from policies.view import WorkerId, WorkerView
from router.placement.learning.output_length import OutputLengths
from router.placement.request import Request


class Cost(msgspec.Struct, frozen=True, gc=False):
    """The cost of a request on one worker: its prefill, and its share of the decode steps in which it takes part.

    `token_s` is the share per output token, `tokens` the expected output of all its answers. `home` is the worker that
    holds most of the prompt, None if none holds more than the others. `first_token_s` is the time to the first token
    once the request is there.
    """

    prefill_s: float
    token_s: float
    tokens: float
    first_token_s: float
    home: WorkerId | None = None

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.token_s * self.tokens

    def corrected_s(self, output_tokens: int) -> float:
        """Return what the answer's real length adds to the cost; negative if it was shorter."""
        return self.token_s * (output_tokens - self.tokens)


def cost_of(request: Request, worker: WorkerView, lengths: OutputLengths, home: WorkerId | None = None) -> Cost:
    """Return the cost of `request` on `worker`.

    A prompt of unknown length counts with its estimate, a list of prompts with the tokens of all, and each of several
    answers with a decode of its own.
    """
    tokens = lengths.expected_tokens(request) * max(1, request.answers)
    token_s = lengths.decode_s(1.0) / (worker.running_requests + 1)
    return Cost(worker.prefill_s, token_s, tokens, worker.queue_wait_s + worker.prefill_s, home)
