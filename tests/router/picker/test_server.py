"""Health names, TLS, flags, metrics, and what the admin side sees of a picker."""

import argparse
import asyncio
import socket
import ssl

import grpc
import pytest
import trustme

from router.cli import picker as command
from router.cli.main import build_parser
from router.cli.options import read_settings
from router.config.problems import ConfigError
from router.picker.flags import NOT_OFFERED, ignored, settings_of
from router.picker.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from router.picker.protocol.names import HEALTH_CHECK, HEALTH_WATCH
from router.picker.settings import picker_config, without_effect
from router.requests.front import ListenError
from router.settings import load_with_places
from tests.support.gateway_stream import body, chat, picked, picker_rig, refused, request_headers
from tests.support.waiting import eventually

SERVING, NOT_SERVING, UNKNOWN = (
    HealthCheckResponse.SERVING,
    HealthCheckResponse.NOT_SERVING,
    HealthCheckResponse.SERVICE_UNKNOWN,
)
READY = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension")


def health(channel, method):
    serialise, read = HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    kind = channel.unary_unary if method == HEALTH_CHECK else channel.unary_stream
    return kind(method, request_serializer=serialise, response_deserializer=read)


async def status(channel, service):
    return (await health(channel, HEALTH_CHECK)(HealthCheckRequest(service=service))).status


# health


async def test_liveness_is_always_serving_and_readiness_follows_the_fleet():
    async with picker_rig(ready=False) as rig:
        assert await status(rig.channel, "liveness") == SERVING
        assert {await status(rig.channel, name) for name in READY} == {NOT_SERVING}
        rig.ready("10.0.0.1:8000")
        assert {await status(rig.channel, name) for name in READY} == {SERVING}
        rig.system.ports.begin_drain()
        assert await status(rig.channel, "liveness") == SERVING
        assert {await status(rig.channel, name) for name in READY} == {NOT_SERVING}
        assert picked((await rig.ask(request_headers(), body(chat())))[0]), "a drain still takes requests"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await status(rig.channel, "another")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_reports_each_change():
    async with picker_rig() as rig:
        watch = health(rig.channel, HEALTH_WATCH)(HealthCheckRequest(service="readiness"))
        seen = [(await watch.read()).status]
        rig.picker.drain()
        seen.append((await watch.read()).status)
        rig.picker.end_drain()
        seen.append((await watch.read()).status)
        unknown = health(rig.channel, HEALTH_WATCH)(HealthCheckRequest(service="another"))
        assert (await unknown.read()).status == UNKNOWN
        assert seen == [SERVING, NOT_SERVING, SERVING]
        watch.cancel()
        unknown.cancel()


async def test_a_port_for_health_alone_answers_nothing_else(unused_tcp_port):
    async with (
        picker_rig(picker={"health_port": unused_tcp_port}, secure=True) as rig,
        grpc.aio.insecure_channel(f"127.0.0.1:{unused_tcp_port}") as channel,
    ):
        assert await status(channel, "readiness") == SERVING
        rig.channel = channel
        stream = rig.stream()
        with pytest.raises(grpc.aio.AioRpcError):
            await (await stream.send(request_headers())).next()
        assert await stream.call.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("setting", "flag"), [("port", "--grpc-port"), ("health_port", "--grpc-health-port")])
async def test_a_port_that_is_taken_is_named_with_its_flag(setting, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {"port": port} if setting == "port" else {"picker": {"health_port": port}}
        with pytest.raises(ListenError, match=rf"127.0.0.1:{port} \({flag}, host\)"):
            async with picker_rig(**settings):
                pass


# TLS


async def peer_certificate(address, context):
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
    found = writer.get_extra_info("ssl_object")
    chosen, certificate = found.selected_alpn_protocol(), found.getpeercert(binary_form=True)
    writer.close()
    return chosen, certificate


async def test_without_files_the_picker_signs_its_own_certificate():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    async with picker_rig(secure=True) as rig:
        address = rig.system.ports._addresses[0]
        assert address.startswith("grpcs://")
        chosen, certificate = await peer_certificate(address.partition("://")[2], context)
        pem = ssl.DER_cert_to_PEM_cert(certificate).encode()
        credentials = grpc.ssl_channel_credentials(pem)
        named = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(address.partition("://")[2], credentials, named) as channel:
            rig.channel = channel
            assert await rig.pick()
    assert chosen == "h2"


async def test_the_operators_files_are_used_and_read_again_when_they_change(tmp_path):
    authority = trustme.CA()
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write():
        made = authority.issue_cert("localhost")
        cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)

    write()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2"])
    files = {"cert_file": str(cert), "key_file": str(key)}
    async with picker_rig(secure=True, tls=files) as rig:
        address = rig.system.ports._addresses[0].partition("://")[2]
        _, first = await peer_certificate(address, context)
        write()
        _, second = await peer_certificate(address, context)
        cert.write_bytes(b"no certificate")
        _, third = await peer_certificate(address, context)
    assert first != second == third


# limits


async def test_streams_at_once_are_bounded():
    async with picker_rig(picker={"max_streams": 1, "learn": "headers"}) as rig:
        first = await rig.stream().send(request_headers())
        await asyncio.sleep(0.05)
        second = rig.stream()
        waiting = asyncio.ensure_future(second.send(request_headers(), body(chat())))
        assert await second.silent()
        first.call.cancel()
        second.call.cancel()
        waiting.cancel()


async def test_requests_in_progress_are_bounded():
    async with picker_rig(limits={"max_concurrent_requests": 1}, picker={"learn": "headers"}) as rig:
        stream = await rig.stream().send(request_headers(), body(chat()))
        assert picked(await stream.next())
        (answer,) = await rig.ask(request_headers(), body(chat()))
        assert refused(answer)[1]["code"] == "concurrency_limit"
        stream.call.cancel()
        await rig.empties()


# the admin side


async def test_the_admin_side_sees_picks_requests_and_previews():
    async with picker_rig(picker={"learn": "headers"}) as rig:
        stream = await rig.stream().send(request_headers(), body(chat()))
        pick = picked(await stream.next())
        assert rig.system.ports.in_flight() == {pick: 1}
        previewed = await rig.picker.preview("/v1/chat/completions", {}, chat())
        assert previewed.request.model == "m"
        await eventually(lambda: rig.picker._parts.picks.values)  # counted once the whole answer is on its way
        page, _ = await rig.system.view.exposition()
        assert (
            b"warmroute_picker_streams 1.0" in page and b'warmroute_picks_total{outcome="picked",pool=""} 1.0' in page
        )
        assert rig.core.log.latest(1)[0].worker == pick
        stream.call.cancel()
        await rig.empties()


# flags and settings


def parsed(*argv):
    return build_parser().parse_args(["picker", *argv])


def config(*argv):
    arguments = parsed(*argv)
    arguments.further_settings = settings_of(arguments)
    return picker_config(read_settings(arguments))


def test_flags_of_gaies_manifest_become_settings():
    found = config(
        *("--pool-name", "llama", "--pool-namespace", "models", "--pool-group", "inference.networking.k8s.io"),
        *("--grpc-port", "9102", "--grpc-health-port=9103", "--metrics-port", "9190", "--zap-encoder", "json"),
        *("-v=5", "--secure-serving=false", "--health-checking", "--tracing=false", "--config-file", "/config/x.yaml"),
        "--emit-endpoint-scores",
    )
    (source,) = found.discovery.sources.values()
    assert (source.kubernetes.pool, source.kubernetes.namespace) == ("llama", "models")
    assert (found.port, found.picker.health_port, found.admin_port) == (9102, 9103, 9190)
    assert (found.picker.secure, found.log_level, found.log_format) == (False, "debug", "json")
    assert found.picker.scores


def test_several_pools_have_a_port_each():
    found = config("--pool-name=chat", "--grpc-port=9002", "--pool-name=embed.v2", "--grpc-port=9004")
    assert {name: (one.port, one.workers) for name, one in found.picker.pools.items()} == {
        "chat": (9002, {"pool": "chat"}),
        "embed.v2": (9004, {"pool": "embed.v2"}),
    }
    sources = found.discovery.sources.values()
    assert [(one.kubernetes.pool, one.defaults) for one in sources] == [
        ("chat", {"label.pool": "chat"}),
        ("embed.v2", {"label.pool": "embed.v2"}),
    ]


@pytest.mark.parametrize("given", ["--pool-name a --pool-name b --grpc-port 1", "--pool-name a --pool-name a"])
def test_pools_without_a_port_each_are_a_mistake(given):
    with pytest.raises(ConfigError, match=r"^--pool-name: 2 pools and"):
        config(*given.split())


def test_flags_without_effect_are_named():
    arguments = parsed("--pool-group", "x", "--refresh-metrics-interval=50ms", "--grpc-port", "1")
    assert ignored(arguments) == ["--pool-group", "--refresh-metrics-interval"]


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ("--pool-name=a --endpoint-target-ports=1", ["--endpoint-target-ports"]),
        ("--pool-name=a --pool-namespace=b --endpoint-selector=c", ["--endpoint-selector"]),
        ("--pool-namespace=b --endpoint-target-ports=1", ["--endpoint-target-ports", "--pool-namespace"]),
        ("--pool-namespace=b --endpoint-selector=c --endpoint-target-ports=1", []),
    ],
)
def test_flags_about_pods_that_nobody_looks_for_are_named(given, unused):
    assert ignored(parsed(*given.split())) == unused


def test_a_file_of_plugins_is_for_translate(caplog):
    caplog.set_level("INFO")
    command._report(["--config-file", "--tracing"])
    said, other = caplog.records
    assert (said.levelname, said.flags, other.flags) == ("WARNING", "--config-file", "--tracing")
    assert "--translate" in said.message


def test_the_time_of_a_drain_is_a_duration_of_go(capsys):
    assert config("--drain-timeout", "1m30s").timeouts.drain_s == 90
    with pytest.raises(SystemExit):
        parsed("--drain-timeout", "soon")
    assert "'soon' is no duration; write one as 30s" in capsys.readouterr().err


def test_a_selector_and_ports_stand_for_pods(tmp_path):
    found = config("--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000,8001")
    assert [(one.kubernetes.pods, one.kubernetes.port) for one in found.discovery.sources.values()] == [
        ("app=vllm", 8000),
        ("app=vllm", 8001),
    ]
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    arguments = parsed("--cert-path", str(tmp_path), "--secure-serving")
    assert {name: one.value for name, one in settings_of(arguments).items()} == {
        "picker.secure": "true",
        "tls.cert_file": f"{tmp_path}/tls.crt",
        "tls.key_file": f"{tmp_path}/tls.key",
    }


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--grpc-port", "99999"), ("--secure-serving", "maybe"), ("--cert-path", "/nowhere"), ("--metrics-port", "-1")],
)
def test_a_mistake_in_a_flag_names_the_flag(flag, value):
    with pytest.raises(ConfigError, match=f"^{flag}: "):
        config(f"{flag}={value}")


def test_set_wins_over_a_flag():
    assert config("--grpc-port=1", "--set", "port=2").port == 2


def test_the_defaults_are_gaies():
    assert (config().port, config().picker.secure, config().picker.learn) == (9002, True, "none")


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("processes=2", "one process"),
        ("takeover=/tmp/a", "hands no port over"),
        ("uds=/tmp/a", "TCP port"),
        ("picker.health_port=9002", "is taken"),
        ("workers=http://vllm.example:8000", "IP address"),
    ],
)
def test_what_a_picker_cannot_do_is_an_error(setting, problem):
    with pytest.raises(ConfigError, match=problem):
        config("--set", setting)


def test_files_of_tls_without_tls_are_an_error(tmp_path):
    made = trustme.CA().issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    with pytest.raises(ConfigError, match="secure is false"):
        config("--set", f"tls.cert_file={tmp_path}/both.pem", "--secure-serving=false")


def test_the_help_names_no_flag_of_a_setting_that_a_picker_refuses(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    said = capsys.readouterr().out
    offered = {word.strip("[],") for word in said.split() if word.strip("[").startswith("--")}
    assert not offered & NOT_OFFERED and "--grpc-port" in offered


def test_settings_of_what_a_picker_leaves_to_the_gateway_are_named():
    given = {"access_log": "true", "tracing.share": "1", "picker.learn": "all", "timeouts.total_s": "9"}
    assert without_effect(load_with_places(given, {}, None)) == ["access_log", "tracing"]
    assert without_effect(load_with_places({}, {}, None)) == []


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(command, "_installed", lambda name: name != "grpc")
    assert command.run(argparse.Namespace(translate=None)) == 1
    assert "pip install 'warmroute[picker]'" in capsys.readouterr().err
