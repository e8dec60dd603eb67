import pytest
from msgspec.structs import replace

from backends.worker import Endpoint, ServedModel, WorkerFacts
from router.config.model import HealthConfig, ModelConfig
from router.config.on_request import OnRequest
from router.errors import ErrorKind
from router.placement.fleet import traffic
from router.placement.fleet.fleet import Fleet, WorkerState
from router.placement.request import Request
from router.placement.selection import Selection, exclusions, select
from router.placement.tickets import Queued, Reject


@pytest.fixture
def fleet(shadow_residency, facts):
    """Ports 1 and 2 serve m, 2 also serves the adapter sql, 3 serves n; 4 does not list its models."""
    fleet = Fleet(HealthConfig(), shadow_residency)
    cards = {
        1: (ServedModel("m", max_model_len=1_000),),
        2: (ServedModel("m", max_model_len=8_000), ServedModel("sql", parent="m")),
        3: (ServedModel("n"),),
    }
    for port, models in cards.items():
        fleet.add(Endpoint("http", "h", port), 0.0)
        fleet.probe_succeeded(f"h:{port}", WorkerFacts(models=models), 0.0)
    return fleet


@pytest.fixture
def ask(prompt):
    def make(model="m", tokens=100, **fields):
        return Request("r", "/v1/completions", model, prompt(range(tokens)), tokens, 0.0, **fields)

    return make


def names(selection):
    assert isinstance(selection, Selection), selection
    return [candidate.id for candidate in selection.candidates]


def half_open(fleet, port):
    for second in range(3):
        fleet.probe_failed(f"h:{port}", "refused", second)
    fleet.probe_succeeded(f"h:{port}", fleet.get(f"h:{port}").facts, 4.0)
    assert fleet.get(f"h:{port}").state is WorkerState.HALF_OPEN


def test_by_model_and_adapter(fleet, ask):
    assert names(select(fleet, ask(), (), 0.0)) == ["h:1", "h:2"]
    assert names(select(fleet, ask("sql"), (), 0.0)) == ["h:2"]
    assert names(select(fleet, ask("n"), (), 0.0)) == ["h:3"]
    assert names(select(fleet, ask(None), (), 0.0)) == ["h:1", "h:2", "h:3"]


def test_unknown_model_is_rejected_once_all_have_been_asked(fleet, ask):
    answer = select(fleet, ask("x"), (), 0.0)
    assert isinstance(answer, Reject)
    assert answer.error.kind is ErrorKind.MODEL_NOT_FOUND
    assert "m, sql, n" in answer.error.message
    fleet.add(Endpoint("http", "h", 4), 0.0)
    held = select(fleet, ask("x"), (), 0.0)
    assert isinstance(held, Queued) and held.reason == "no worker is ready: h:4 is starting (not probed yet)"
    fleet.probe_failed("h:4", "refused", 0.0)
    answer = select(fleet, ask("x"), (), 0.0)
    assert isinstance(answer, Reject) and answer.error.kind is ErrorKind.MODEL_NOT_FOUND
    assert answer.error.message.endswith("Workers that have not answered since the gateway started: 1.")
    fleet.probe_succeeded("h:4", WorkerFacts(), 0.0)  # behind an API key: it may serve any model
    assert names(select(fleet, ask("x"), (), 0.0)) == ["h:4"]
    assert names(select(fleet, ask(), (), 0.0)) == ["h:1", "h:2", "h:4"]


def resolve(fleet, **models):
    fleet.resolve(OnRequest({name: ModelConfig(**fields) for name, fields in models.items()}))


def test_names_on_request_go_to_the_workers_of_their_base(fleet, ask):
    resolve(fleet, m={"on_request": ("a-*", "sql")}, n={"on_request": ("a-n*", "a-m", "*")})
    assert names(select(fleet, ask("a-1"), (), 0.0)) == ["h:1", "h:2"]
    assert names(select(fleet, ask("a-1", tokens=1_000), (), 0.0)) == ["h:2"]
    assert names(select(fleet, ask("a-n1"), (), 0.0)) == ["h:3"]
    assert names(select(fleet, ask("a-m"), (), 0.0)) == ["h:3"]
    assert names(select(fleet, ask("anything"), (), 0.0)) == ["h:3"]
    assert names(select(fleet, ask("m"), (), 0.0)) == ["h:1", "h:2"]
    assert [fleet.models.adapter(name) for name in ("a-1", "m", "n")] == ["a-1", None, None]
    resolve(fleet)
    assert isinstance(select(fleet, ask("a-1"), (), 0.0), Reject)


def test_an_adapter_that_one_worker_has_loaded_is_resolved_by_its_peers_too(fleet, ask):
    assert names(select(fleet, ask("sql"), (), 0.0)) == ["h:2"]
    resolve(fleet, m={"on_request": ("sql",)})
    assert names(select(fleet, ask("sql"), (), 0.0)) == ["h:1", "h:2"]
    resolve(fleet, n={"on_request": ("*",)})  # another model's adapter
    assert names(select(fleet, ask("sql"), (), 0.0)) == ["h:2"]


def test_a_name_in_the_settings_is_resolved_by_the_only_model(fleet, ask):
    resolve(fleet, new={}, own={"dir": "/files"}, safe={"fallback": "m"})
    assert isinstance(select(fleet, ask("new"), (), 0.0), Reject)  # m or n?
    fleet.remove("h:3")
    assert names(select(fleet, ask("new"), (), 0.0)) == ["h:1", "h:2"]
    for name in ("own", "safe", "other"):
        assert isinstance(select(fleet, ask(name), (), 0.0), Reject)
    fleet.probe_succeeded("h:1", WorkerFacts(models=(ServedModel("m"), ServedModel("new", parent="m"))), 0.0)
    assert names(select(fleet, ask("new"), (), 0.0)) == ["h:1"]


def test_a_base_without_workers_resolves_nothing(fleet, ask):
    resolve(fleet, gone={"on_request": ("a-*",)})
    answer = select(fleet, ask("a-1"), (), 0.0)
    assert isinstance(answer, Reject) and "`a-1` does not exist" in answer.error.message
    for _ in range(3):
        fleet.probe_failed("h:3", "refused", 0.0)
    resolve(fleet, n={"on_request": ("a-*",)})
    assert isinstance(select(fleet, ask("a-1"), (), 0.0), Queued)


def test_an_empty_fleet_queues_requests(shadow_residency, ask):
    answer = select(Fleet(HealthConfig(), shadow_residency), ask(), (), 0.0)
    assert isinstance(answer, Queued)
    assert "empty" in answer.reason


def test_by_length(fleet, ask):
    assert names(select(fleet, ask(tokens=999), (), 0.0)) == ["h:1", "h:2"]
    assert names(select(fleet, ask(tokens=1_000), (), 0.0)) == ["h:2"]
    assert names(select(fleet, ask(tokens=100, max_tokens=901), (), 0.0)) == ["h:2"]
    assert names(select(fleet, ask(tokens=9_000), (), 0.0)) == ["h:2"]  # its error states the longest possible length
    unidentified = replace(ask(tokens=2_000), prompt=None)
    assert names(select(fleet, unidentified, (), 0.0)) == ["h:1", "h:2"]  # its length is an estimate
    fleet.drain("h:2")
    answer = select(fleet, ask(tokens=2_000), (), 0.0)
    assert isinstance(answer, Queued)
    assert "h:2 is draining" in answer.reason and "h:1" not in answer.reason
    assert names(select(fleet, ask(tokens=9_000), (), 0.0)) == ["h:1"]  # a longer context is not waited for


def test_too_long_for_all_goes_to_all_of_the_longest(fleet, ask):
    fleet.add(Endpoint("http", "h", 4), 0.0)
    fleet.probe_succeeded("h:4", WorkerFacts(models=(ServedModel("m", max_model_len=8_000),)), 0.0)
    assert names(select(fleet, ask(tokens=9_000), (), 0.0)) == ["h:2", "h:4"]
    assert names(select(fleet, ask(tokens=9_000), ("h:2",), 0.0)) == ["h:4"]
    assert isinstance(select(fleet, ask(tokens=9_000), ("h:2", "h:4"), 0.0), Queued)


def test_earlier_attempts_are_left_out(fleet, ask):
    assert names(select(fleet, ask(), ("h:1",), 0.0)) == ["h:2"]
    assert isinstance(select(fleet, ask(), ("h:1", "h:2"), 0.0), Queued)


def test_workers_under_pressure_are_avoided_while_others_are_calm(fleet, ask):
    traffic.avoid(fleet, fleet.get("h:1"), None, 10.0, trial=False)
    assert names(select(fleet, ask(), (), 10.1)) == ["h:2"]
    assert names(select(fleet, ask(), (), 10.3)) == ["h:1", "h:2"]
    traffic.avoid(fleet, fleet.get("h:1"), None, 20.0, trial=False)
    traffic.failed(fleet, fleet.get("h:2"), "reset", 20.0, trial=False)
    assert names(select(fleet, ask(), (), 20.1)) == ["h:1", "h:2"]


def test_retry_after_is_honoured(fleet, ask):
    traffic.avoid(fleet, fleet.get("h:1"), 5.0, 10.0, trial=False)
    assert names(select(fleet, ask(), (), 14.0)) == ["h:2"]
    traffic.avoid(fleet, fleet.get("h:2"), 3.0, 10.0, trial=False)
    answer = select(fleet, ask(), (), 11.0)
    assert isinstance(answer, Reject)
    assert answer.error.kind is ErrorKind.OVERLOADED
    assert answer.error.retry_after_s == pytest.approx(2.0)
    assert names(select(fleet, ask(), (), 13.0)) == ["h:2"]


def test_a_half_open_endpoint_has_one_trial_and_it_comes_first(fleet, ask):
    half_open(fleet, 1)
    selection = select(fleet, ask(), (), 5.0)
    assert names(selection) == ["h:2", "h:1"]
    assert selection.trial is fleet.get("h:1")
    fleet.get("h:1").health.trial_running = True
    assert select(fleet, ask(), (), 5.0) == Selection(fleet.get("h:2").candidates)
    traffic.trial_given_up(fleet, fleet.get("h:1"))
    assert select(fleet, ask(), (), 5.0).trial is not None
    assert select(fleet, ask(tokens=2_000), (), 5.0).trial is None


def test_half_open_endpoints_take_all_requests_while_no_worker_is_ready(fleet, ask):
    fleet.drain("h:2")
    half_open(fleet, 1)
    fleet.get("h:1").health.trial_running = True
    assert select(fleet, ask(), (), 5.0) == Selection(fleet.get("h:1").candidates)
    assert isinstance(select(fleet, ask(), ("h:1",), 5.0), Queued)


def test_retries_are_no_trials_unless_nothing_else_is_left(fleet, ask):
    half_open(fleet, 1)
    assert select(fleet, ask(), ("h:9",), 5.0).trial is None
    assert select(fleet, ask(), ("h:2",), 5.0).trial is fleet.get("h:1")


def test_pinned_goes_to_its_worker_even_draining(fleet, ask, facts):
    fleet.drain("h:2")
    assert names(select(fleet, ask(pinned="h:2"), (), 0.0)) == ["h:2"]
    assert isinstance(select(fleet, ask(pinned="h:2"), ("h:2",), 0.0), Queued)
    half_open(fleet, 1)
    assert select(fleet, ask(pinned="h:1"), (), 5.0).trial is fleet.get("h:1")
    fleet.get("h:1").health.trial_running = True
    assert select(fleet, ask(pinned="h:1"), (), 5.0).trial is None
    for second in range(3):
        fleet.probe_failed("h:1", "refused", second)
    assert isinstance(select(fleet, ask(pinned="h:1"), (), 5.0), Queued)
    fleet.probe_succeeded("h:3", facts(ranks=2), 5.0)
    assert names(select(fleet, ask(pinned="h:3"), (), 5.0)) == ["h:3#0", "h:3#1"]
    assert names(select(fleet, ask(pinned="h:3#1"), (), 5.0)) == ["h:3#1"]
    answer = select(fleet, ask(pinned="h:7"), (), 5.0)
    assert isinstance(answer, Reject)
    assert answer.error.kind is ErrorKind.RESPONSE_NOT_FOUND


def test_exclusions_say_why(fleet, ask):
    fleet.drain("h:2")
    fleet.add(Endpoint("http", "h", 4), 0.0)
    request = ask()
    excluded = exclusions(fleet, request, select(fleet, request, (), 0.0))
    assert set(excluded) == {"h:2", "h:3", "h:4"}
    assert "drained" in excluded["h:2"]
    assert excluded["h:3"] == "does not serve m"
    assert "not probed yet" in excluded["h:4"]
    traffic.avoid(fleet, fleet.get("h:1"), None, 0.0, trial=False)
    fleet.undrain("h:2")
    calm = exclusions(fleet, request, select(fleet, request, (), 0.1))
    assert "avoided" in calm["h:1"]
    long = ask(tokens=2_000)
    assert "too short" in exclusions(fleet, long, select(fleet, long, (), 1.0))["h:1"]
