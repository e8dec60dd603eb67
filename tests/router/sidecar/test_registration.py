import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import redis.asyncio

from backends.discovery.registration import Registration, decode, registration_key
from backends.worker import ServedModel, WorkerFacts
from loadtest.fleet.ports import free_ports
from router.config.model import Config, RedisConfig, SidecarConfig, TlsConfig, WorkerConfig
from router.sidecar import registration as lease_module
from router.sidecar import registries as registries_module
from router.sidecar.registration import Lease, WorkerRegistration
from router.sidecar.registries import GatewayRegistry, RedisRegistry, RegistryError, registries
from tests.support.redis import needs_redis
from tests.support.redis_server import redis_server
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

WORKER = Registration(url="http://10.0.0.5:8080", model="m")
FACTS = WorkerFacts(models=(ServedModel("lora", parent="m"), ServedModel("m")))


class FakeRegistry:
    name = "fake"
    address = ("127.0.0.1", 9)

    def __init__(self):
        self.error = None
        self.silent = False
        self.held = None
        self.calls = 0
        self.closed = False

    async def _answer(self):
        self.calls += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise RegistryError(self.error)

    async def register(self, registration):
        await self._answer()
        self.held = registration

    async def withdraw(self, registration):
        await self._answer()
        self.held = None

    async def aclose(self):
        self.closed = True


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(lease_module, "RENEW_S", 0.03)
    monkeypatch.setattr(lease_module, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(lease_module, "WITHDRAW_S", 0.05)


@asynccontextmanager
async def leased(registry, describe=lambda here: WORKER):
    lease = Lease(registry, describe)
    lease.start()
    try:
        yield lease
    finally:
        await lease.aclose()


async def test_a_lease_registers_renews_and_withdraws(fast):
    registry = FakeRegistry()
    async with leased(registry) as lease:
        await eventually(lambda: registry.calls >= 3)
        assert registry.held == WORKER
        assert lease.registered
    assert registry.held is None and registry.closed


async def test_a_registry_that_fails_is_tried_again_and_logged_once(fast, caplog):
    registry = FakeRegistry()
    registry.error = "out of order"
    async with leased(registry) as lease:
        await eventually(lambda: registry.calls >= 5)
        assert [record.levelname for record in caplog.records if record.msg == "not registered"].count("WARNING") == 1
        assert not lease.registered
        registry.error = None
        await eventually(lambda: registry.held == WORKER)


async def test_pauses_after_failures_grow_up_to_the_renewal(monkeypatch):
    lease = Lease(FakeRegistry(), lambda here: WORKER)
    monkeypatch.setattr(lease_module.random, "uniform", lambda low, high: high)
    pauses = []
    for _ in range(6):
        lease._failed("down")
        pauses.append(lease._pause_s())
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


async def test_nothing_is_registered_until_the_worker_is_known(fast):
    registry, known = FakeRegistry(), []
    async with leased(registry, lambda here: WORKER if known else None) as lease:
        await asyncio.sleep(0.1)
        assert registry.calls == 0
        known.append(True)
        lease.renew()
        await eventually(lambda: registry.held == WORKER)


async def test_a_registry_that_does_not_answer_delays_the_withdrawal_only_for_a_moment(fast, caplog):
    registry = FakeRegistry()
    async with leased(registry) as lease:
        await eventually(lambda: registry.held == WORKER)
        registry.silent = True
        async with asyncio.timeout(2):
            await lease.withdraw()
    assert "not withdrawn" in caplog.text


async def test_a_withdrawn_lease_can_start_again(fast):
    registry = FakeRegistry()
    async with leased(registry) as lease:
        await eventually(lambda: registry.held == WORKER)
        await lease.withdraw()
        assert registry.held is None
        lease.start()
        await eventually(lambda: registry.held == WORKER)


# the document


@asynccontextmanager
async def described(**settings):
    """The registration of a worker with these settings, once a registry holds it."""
    registry = FakeRegistry()
    registration = WorkerRegistration(config_of(**settings), [registry], lambda: FACTS, lambda: 8080)
    registration.start()
    await eventually(lambda: registry.held)
    yield registry.held, registration
    await registration.aclose()


def config_of(**settings):
    worker = {"url": "http://127.0.0.1:8000", "name": "gpu-1", "weight": 0.5, "role": "decode", "labels": {"zone": "a"}}
    return msgspec.convert({"workers": [worker], **settings}, Config)


async def test_the_document_describes_the_worker_at_the_sidecars_address():
    async with described() as (held, registration):
        assert held.url == "http://127.0.0.1:8080"  # the way to the registry is loopback
        assert (held.name, held.model, held.role, held.weight) == ("gpu-1", "m", "decode", 0.5)
        assert held.labels == {"zone": "a"} and held.kv_events is None and held.started_at > 0
        readings = list(registration.readings())
        assert ("warmroute_sidecar_registered", ("fake",), 1.0) in readings


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"host": "10.1.2.3"}, "http://10.1.2.3:8080"),
        ({"host": "fd00::5"}, "http://[fd00::5]:8080"),
        ({"tls": {"cert_file": "c.pem"}}, "https://127.0.0.1:8080"),
        ({"sidecar": {"advertise_url": "https://gpu1.example:443"}}, "https://gpu1.example:443"),
    ],
)
async def test_the_address_follows_the_settings(settings, url):
    async with described(**settings) as (held, _):
        assert held.url == url


async def test_a_registry_whose_name_does_not_resolve_is_a_failure(fast, caplog):
    registry = FakeRegistry()
    registry.address = ("no.such.host.invalid", 1)
    async with leased(registry):
        await eventually(lambda: "not registered" in caplog.text)
    assert registry.calls == 0


# a gateway's admin port


@asynccontextmanager
async def gateway(status=200, **settings):
    async def script(script):
        await script.say(b"HTTP/1.1 %d X\r\ncontent-length: 4\r\n\r\nsaid" % status)

    server = await ScriptedWorker(script).start()
    url = f"http://{server.id}/"
    registry = GatewayRegistry(url, SidecarConfig(gateways=(url,), **settings))
    try:
        yield registry, server
    finally:
        await registry.aclose()
        await server.stop()


async def test_a_gateway_gets_the_document_with_a_lease_and_the_token(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    async with gateway(gateway_token_file=str(tmp_path / "token")) as (registry, server):
        await registry.register(WORKER)
        await registry.withdraw(WORKER)
        put, delete = server.requests
        assert (put.method, put.path) == (b"PUT", b"/admin/v1/registrations/10.0.0.5:8080")
        assert msgspec.json.decode(put.body) == {"url": "http://10.0.0.5:8080", "model": "m", "ttl_s": 15.0}
        assert put.header(b"authorization") == b"Bearer secret"
        assert (delete.method, delete.path, delete.body) == (b"DELETE", put.path, b"")
        assert registry.name == server.id


async def test_the_tokens_file_is_read_at_each_call(tmp_path):
    file = tmp_path / "token"
    async with gateway(gateway_token_file=str(file)) as (registry, server):
        with pytest.raises(RegistryError, match="No such file"):
            await registry.register(WORKER)
        for token in ("one", "two"):
            file.write_text(f"{token}\n")
            await registry.register(WORKER)
        assert [seen.header(b"authorization") for seen in server.requests] == [b"Bearer one", b"Bearer two"]


async def test_a_refusal_is_an_error_with_its_text_unless_the_registration_is_gone_already():
    async with gateway(404) as (registry, _):
        with pytest.raises(RegistryError, match="PUT answered 404: said"):
            await registry.register(WORKER)
        await registry.withdraw(WORKER)


async def test_a_gateway_that_is_down_or_silent_is_an_error(monkeypatch):
    async with gateway() as (registry, server):
        await server.stop()
        with pytest.raises(RegistryError):
            await registry.register(WORKER)
    monkeypatch.setattr(registries_module, "CALL_S", 0.05)

    async def silent(script):
        await script.gone()

    server = await ScriptedWorker(silent).start()
    registry = GatewayRegistry(f"http://{server.id}", SidecarConfig())
    with pytest.raises(RegistryError):
        await registry.register(WORKER)
    await registry.aclose()
    await server.stop()


# Redis


@pytest.fixture(scope="module")
def server():
    with redis_server() as running:
        yield running


@needs_redis
async def test_redis_holds_the_document_for_the_lease(server):
    config = RedisConfig(url=server.url, fleet="f")
    registry = RedisRegistry(config)
    client = redis.asyncio.Redis.from_url(server.url)
    key = registration_key("warmroute", "f", "10.0.0.5:8080")
    await registry.register(WORKER)
    assert decode(await client.get(key)) == WORKER
    assert 10 < await client.ttl(key) <= 15
    await registry.withdraw(WORKER)
    assert await client.get(key) is None
    await registry.aclose()
    await client.aclose()


@needs_redis
async def test_a_sidecars_redis_user_may_register_and_nothing_else(server):
    page = Path(__file__).parents[3] / "docs" / "how-to" / "run-several-gateways.md"
    (line,) = [one for one in page.read_text().splitlines() if one.startswith("user sidecar ")]
    client = redis.asyncio.Redis.from_url(server.url)
    await client.execute_command("ACL", "SETUSER", *line.split()[1:])
    config = RedisConfig(url=server.url, username="sidecar", password="PASSWORD")
    registry = RedisRegistry(config)
    await registry.register(WORKER)
    key = registration_key("warmroute", "default", WORKER.worker_id)
    assert decode(await client.get(key)) == WORKER
    await registry.withdraw(WORKER)
    with pytest.raises(redis.exceptions.NoPermissionError):
        await registry._client.publish("warmroute:{default}:channel", b"x")
    with pytest.raises(redis.exceptions.NoPermissionError):
        await registry._client.set("warmroute:{default}:state", b"x")
    await registry.aclose()
    await client.aclose()


@needs_redis
async def test_a_redis_that_is_down_is_an_error():
    registry = RedisRegistry(RedisConfig(url=f"redis://127.0.0.1:{free_ports(1)}"))
    with pytest.raises(RegistryError):
        await registry.register(WORKER)
    await registry.aclose()


async def test_every_registry_of_the_settings_is_used():
    config = Config(
        workers=(WorkerConfig("http://127.0.0.1:8000"),),
        redis=RedisConfig(url="redis://10.0.0.9"),
        sidecar=SidecarConfig(gateways=("http://gw1:8001", "https://gw2")),
        tls=TlsConfig(),
    )
    found = registries(config)
    assert [(one.name, one.address) for one in found] == [
        ("gw1:8001", ("gw1", 8001)),
        ("gw2:443", ("gw2", 443)),
        ("redis", ("10.0.0.9", 6379)),
    ]
    for one in found:
        await one.aclose()
