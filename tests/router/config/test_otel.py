import pytest

from router.config.model import Config, TracingConfig, to_builtins
from router.config.problems import ConfigError
from router.settings import load

HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def tracing(tmp_path=None, text="", **env):
    file = None
    if text:
        file = tmp_path / "w.yaml"
        file.write_text(text)
    return load({}, HERE | env, file).tracing


def test_the_receiver_for_all_signals_gets_the_path_of_traces():
    assert tracing().endpoint == "http://collector:4318/v1/traces"
    assert tracing(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://t:1/x").endpoint == "http://t:1/x"


def test_every_variable_has_its_setting():
    read = tracing(
        OTEL_EXPORTER_OTLP_HEADERS="x-key=a%20b, other=1",
        OTEL_SERVICE_NAME="front",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test,team=ml",
        OTEL_TRACES_SAMPLER="parentbased_traceidratio",
        OTEL_TRACES_SAMPLER_ARG="0.25",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/json",
    )
    assert (read.headers, read.share) == ({"x-key": "a b", "other": "1"}, 0.25)
    assert read.resource == {"service.name": "front", "deployment.environment.name": "test", "team": "ml"}


@pytest.mark.parametrize(
    ("sampler", "share"), [("always_on", 1.0), ("parentbased_always_off", 0.0), ("traceidratio", 1.0)]
)
def test_a_sampler_is_a_share(sampler, share):
    assert tracing(OTEL_TRACES_SAMPLER=sampler).share == share


def test_settings_and_their_variables_go_before(tmp_path):
    text = "tracing: {share: 0.5, resource: {team: file}}\n"
    read = tracing(tmp_path, text, OTEL_TRACES_SAMPLER_ARG="0.1", OTEL_RESOURCE_ATTRIBUTES="team=otel")
    assert (read.share, read.resource["team"], read.endpoint) == (0.5, "file", "http://collector:4318/v1/traces")


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_traces_can_be_switched_off(off):
    assert tracing(**off) == TracingConfig()


def test_without_a_receiver_nothing_is_read():
    assert load({}, {"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "nonsense"}, None).tracing == TracingConfig()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "write http/json"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no-value", "KEY=VALUE"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on, always_off, traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "half", "a share from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "OTEL_TRACES_SAMPLER_ARG"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318", "http://collector:4318/v1/traces"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=1", "no name of a header"),
    ],
)
def test_a_mistake_names_the_variable_or_the_fix(variable, value, said):
    with pytest.raises(ConfigError) as error:
        tracing(**{variable: value})
    assert said in str(error.value)


def test_headers_are_not_shown():
    assert to_builtins(Config(tracing=TracingConfig(headers={"x-key": "secret"})))["tracing"]["headers"] == {
        "x-key": "***"
    }
