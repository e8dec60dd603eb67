import pytest

from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, RequestView, Residency, WorkerId, WorkerView


def make_view(name, **fields):
    values = {
        "residency": Residency.EXACT,
        "cached_tokens": 0,
        "uncached_tokens": 100,
        "queued_tokens": 0,
        "running_requests": 0,
        "kv_tokens": 0,
        "kv_capacity_tokens": 440_000,
        "queue_wait_s": 0.0,
        "prefill_s": 0.0,
        "utilisation": 0.0,
        **fields,
    }
    return WorkerView(id=WorkerId(name), **values)


def make_fleet(**workers):
    return FleetView(0.0, tuple(make_view(name, **fields) for name, fields in workers.items()))


def by_column(fleet):
    """Return the same fleet as arrays, without views of single workers."""
    return FleetView(fleet.now_s, None, fleet.roster, fleet.columns, fleet._running_share)


class RunningRequests:
    """The blocks of the requests that run on each worker, without an index."""

    def __init__(self):
        self._blocks = {}

    def add(self, worker, blocks):
        self._blocks.setdefault(worker, []).append(tuple(blocks))

    def share(self, worker, request, blocks):
        running = self._blocks.get(worker, ())
        if not running or not 0 < blocks <= len(request.block_hashes):
            return 0.0
        wanted = tuple(request.block_hashes[:blocks])
        return sum(hashes[:blocks] == wanted for hashes in running) / len(running)


def by_row(fleet):
    return fleet


def make_request(tokens=100, blocks=(), block_tokens=16, name="r", **fields):
    return RequestView(name, "m", tokens, block_tokens, blocks, **fields)


def reserve(policy, worker, request):
    policy.observe(LifecycleEvent(LifecycleEventKind.RESERVED, request, WorkerId(worker), 0.0))


@pytest.fixture
def view():
    return make_view


@pytest.fixture
def fleet():
    return make_fleet


@pytest.fixture(params=[by_row, by_column])
def form(request):
    """One of the two forms of a fleet: policies have a loop for the one, and arrays for the other."""
    return request.param


@pytest.fixture
def as_columns():
    return by_column


@pytest.fixture
def running_requests():
    return RunningRequests()


@pytest.fixture
def request_view():
    return make_request


@pytest.fixture
def reserved():
    return reserve
