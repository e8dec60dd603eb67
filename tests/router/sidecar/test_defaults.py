import pytest

from router.config.problems import ConfigError
from router.settings import load_with_places
from router.sidecar.defaults import METRICS, sidecar_config


def made(values=None, env=None):
    return sidecar_config(load_with_places(values or {}, env or {}, None))


def test_a_sidecar_stands_beside_vllms_default_port_and_sends_on_what_comes():
    config = made()
    assert [worker.url for worker in config.workers] == ["http://127.0.0.1:8000"]
    assert config.port == 8080
    assert (config.policy.rule, config.policy.hold, config.policy.lanes) == ("round_robin", False, False)
    assert config.timeouts.queue_s == 0
    assert config.auth.isolate_cache == "off"
    assert set(config.auth.allow) == {"transfer_params", "priority", "rank"}
    assert config.extra_paths == METRICS
    assert not config.residency.kv_events and not config.residency.self_test


def test_what_a_source_gave_stays():
    env = {"WARMROUTE_PORT": "9000", "WARMROUTE_AUTH__ALLOW": "rank"}
    given = {"workers": "http://127.0.0.1:7", "timeouts.queue_s": "2", "timeouts.drain_s": "600"}
    config = made(given, env)
    assert (config.port, config.workers[0].url, config.auth.allow) == (9000, "http://127.0.0.1:7", ("rank",))
    assert (config.timeouts.queue_s, config.timeouts.drain_s) == (2, 600)


def test_metrics_that_are_forwarded_already_are_not_forwarded_twice():
    config = made({"extra_paths": {"/metrics": ["GET", "POST"]}})
    assert config.extra_paths == {"/metrics": ("GET", "POST")}


@pytest.mark.parametrize(
    ("values", "place", "problem"),
    [
        ({"workers": "http://a:1,http://b:2"}, "--worker", "there are 2 workers, and a sidecar has one"),
        ({"processes": "2"}, "--processes", "a sidecar runs one process"),
        (
            {"sidecar.gateways": "http://gw:8001,gw2"},
            "--set sidecar.gateways",
            "'gw2' is not the URL of an admin port",
        ),
        (
            {"sidecar.advertise_url": "ftp://x"},
            "--set sidecar.advertise_url",
            "'ftp://x' has scheme 'ftp'",
        ),
        ({"takeover": "/run/w.sock"}, "--takeover", "a sidecar hands nothing over"),
    ],
)
def test_settings_for_more_than_one_worker_or_process_are_refused(values, place, problem):
    with pytest.raises(ConfigError) as refused:
        made(values)
    found = refused.value.problems[0]
    assert found.problem == problem and found.place == place and found.fix
