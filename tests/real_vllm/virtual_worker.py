"""One engine on a virtual clock."""

UNMATCHED_ID = 1 << 31
"""Generated tokens count up from this id. No prompt contains them, so no prompt hits their blocks."""


def unmatched(state):
    """Return a next token that no prompt contains."""
    return UNMATCHED_ID + state.output_tokens


class VirtualWorker:
    """`on_step` is called for every step."""

    def __init__(self, engine, on_step):
        self._engine = engine
        self._on_step = on_step
        self.now_s = 0.0

    def run_until(self, time_s):
        while self._engine.has_work and self.now_s < time_s:
            result = self._engine.step(self.now_s)
            assert result is not None
            self._on_step(result)
            self.now_s += result.duration_s

    def arrive(self, request, time_s):
        """Add a request. If a step runs, the engine sees the request when that step ends."""
        self.run_until(time_s)
        self.now_s = max(self.now_s, time_s)
        return self._engine.add(request, time_s)

    def finish(self):
        self.run_until(float("inf"))

    def statistics(self):
        return self._engine.statistics()
