"""docker-compose.yml: what Docker Compose makes of it, and its services as processes with the file's own commands."""

import os
import re
import shlex
import shutil
import subprocess

import httpx
import pytest
import yaml
from openai import OpenAI

from router.cli import picker, serve, sidecar
from router.cli.main import build_parser
from router.cli.options import read_settings
from router.picker.settings import PORT
from router.security.token import admin_tokens
from router.settings import load
from router.sidecar.defaults import sidecar_config
from router.sidecar.system import STOP_S
from tests.support.compose import (
    COMPOSE,
    MAKE_SECRETS,
    ROOT,
    ComposeProcesses,
    compose_config,
    redis_password,
    secret,
    secrets_folder,
)
from tests.support.waiting import block_until

pytestmark = pytest.mark.skipif(not COMPOSE.exists(), reason="Docker Compose is not installed: run `make deploy-env`")
GATEWAYS = ("gateway-1", "gateway-2")
WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")
GPU, SIDECAR = "--env-file=deploy/compose/gpu.env", "--profile=sidecar"
PAGE = (ROOT / "docs" / "how-to" / "deploy-with-compose.md").read_text()
ADMIN = {"authorization": f"Bearer {secret('admin-token')}"}
PROGRAMS = ("curl", "haproxy", "redis-server", "redis-cli", "prometheus", "wget")


@pytest.fixture(scope="module")
def services():
    return compose_config()["services"]


def seconds(text):
    """Return the seconds of a time such as 1m10s."""
    return sum({"m": 60, "s": 1}[unit] * int(number) for number, unit in re.findall(r"(\d+)([ms])", text))


def settings(services, name):
    mounted = {volume["target"]: volume["source"] for volume in services[name]["volumes"]}
    environment = {key: mounted.get(value, value) for key, value in services[name]["environment"].items()}
    return load({}, environment, ROOT / "deploy" / "compose" / "warmroute.yaml")


class TestConfig:
    def test_it_has_the_fleet_and_no_gpu_by_default(self, services):
        assert set(services) == {*GATEWAYS, *WORKERS, "haproxy", "redis", "prometheus", "grafana"}

    def test_the_gpu_file_replaces_the_embedded_workers_by_vllm(self):
        services = compose_config(GPU)["services"]
        assert {services[name]["scale"] for name in WORKERS} == {0}
        assert [worker.url for worker in settings(services, "gateway-1").workers] == ["http://vllm:8000"]
        assert services["vllm"]["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"

    def test_an_empty_list_of_workers_leaves_only_those_that_register_themselves(self, monkeypatch):
        monkeypatch.setenv("WORKERS", "")
        assert settings(compose_config()["services"], "gateway-1").workers == ()

    def test_the_profile_envoy_adds_a_picker_and_envoy_that_asks_it(self, services):
        profile = compose_config("--profile=envoy")["services"]
        assert profile.keys() - services.keys() == {"picker", "envoy"}
        arguments = build_parser().parse_args(profile["picker"]["command"])
        assert arguments.run is picker.run
        config = yaml.safe_load((ROOT / "deploy" / "envoy" / "full-duplex.yaml").read_text())
        clusters = {each["name"]: each for each in config["static_resources"]["clusters"]}
        (place,) = clusters["picker"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert place["endpoint"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": PORT}
        assert profile["envoy"]["network_mode"] == "service:picker"
        aliases = [service["networks"]["default"]["aliases"] for name, service in services.items() if "worker" in name]
        assert aliases == [["workers"]] * 4

    def test_the_profile_sidecar_adds_workers_that_need_no_list(self, services):
        profile = compose_config(SIDECAR)["services"]
        assert profile.keys() - services.keys() == {"sidecar"}
        arguments = build_parser().parse_args(profile["sidecar"]["command"])
        assert arguments.run is sidecar.run and arguments.child[:2] == ["warmroute", "worker"]
        config = sidecar_config(read_settings(arguments))
        assert config.redis.url == settings(services, "gateway-1").redis.url
        assert [source.redis is None for source in settings(services, "gateway-1").discovery.sources.values()] == [
            False
        ]
        stop_s = config.timeouts.drain_delay_s + config.timeouts.drain_s + STOP_S
        assert seconds(profile["sidecar"]["stop_grace_period"]) > stop_s + 5

    @pytest.mark.parametrize("name", GATEWAYS)
    def test_a_gateways_command_is_serve_and_its_workers_are_the_services(self, services, name):
        assert build_parser().parse_args(services[name]["command"]).run is serve.run
        assert [worker.url for worker in settings(services, name).workers] == [
            f"http://{each}:9001" for each in WORKERS
        ]

    @pytest.mark.parametrize("name", [*GATEWAYS, *WORKERS, "sidecar"])
    def test_our_services_cannot_write_to_their_root_and_have_no_capabilities(self, services, name):
        service = (services if name in services else compose_config(SIDECAR)["services"])[name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert "no-new-privileges:true" in service["security_opt"]

    @pytest.mark.parametrize("name", GATEWAYS)
    def test_a_gateway_has_the_time_to_drain(self, services, name):
        timeouts = settings(services, name).timeouts
        assert seconds(services[name]["stop_grace_period"]) > timeouts.drain_delay_s + timeouts.drain_s + 5

    def test_a_gateway_answers_to_the_names_that_prometheus_uses(self, services):
        scraped = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yml").read_text())["scrape_configs"]
        (names,) = (job["static_configs"][0]["targets"] for job in scraped)
        accepted = settings(services, "gateway-1").admin_hosts
        assert [name.removesuffix(":8001") for name in names] == list(accepted) == list(GATEWAYS)

    def test_only_the_public_port_is_published_beyond_this_machine(self, services):
        ports = [(name, port) for name, service in services.items() for port in service.get("ports", ())]
        assert [name for name, port in ports if port.get("host_ip") != "127.0.0.1"] == ["haproxy"]

    def test_every_mounted_file_exists(self, services):
        mounted = [volume for service in services.values() for volume in service.get("volumes", ())]
        sources = [volume["source"] for volume in mounted if volume["type"] == "bind"]
        assert len(sources) >= 8 and all((ROOT / source).exists() for source in sources)

    @pytest.mark.parametrize("name", GATEWAYS)
    def test_the_admin_port_has_tokens_of_two_roles(self, services, name):
        tokens = admin_tokens(settings(services, name))
        roles = [tokens.caller_of(f"Bearer {secret(token)}").role for token in ("admin-token", "metrics-token")]
        assert roles == ["admin", "read"]
        assert tokens.caller_of("Bearer ") is None

    def test_redis_is_closed_to_others_and_a_sidecar_has_a_user_of_its_own(self, services):
        gateway = settings(services, "gateway-1")
        assert gateway.redis.password == redis_password()
        assert gateway.auth.isolation_secret not in (None, gateway.redis.password)
        of_sidecar = compose_config(SIDECAR)["services"]["sidecar"]["environment"]
        assert of_sidecar["WARMROUTE_REDIS__USERNAME"] == "sidecar"
        assert of_sidecar["WARMROUTE_REDIS__PASSWORD"] != redis_password()
        users = secret("redis.conf").splitlines()
        page = (ROOT / "docs" / "how-to" / "run-several-gateways.md").read_text()
        assert users[1].replace(of_sidecar["WARMROUTE_REDIS__PASSWORD"], "PASSWORD") in page

    def test_a_client_does_not_learn_what_is_cached(self, services):
        assert not settings(services, "gateway-1").headers.predicted_cached_tokens

    @pytest.mark.parametrize("name", GATEWAYS)
    def test_fetched_tokenizers_lie_in_a_volume(self, services, name):
        volumes = {one["target"]: one["source"] for one in services[name]["volumes"] if one["type"] == "volume"}
        assert volumes == {services[name]["environment"]["HF_HOME"]: "tokenizers"}
        assert f"HF_HOME={services[name]['environment']['HF_HOME']}" in (ROOT / "Dockerfile").read_text()

    def test_nobody_reads_dashboards_without_a_login(self, services):
        environment = services["grafana"]["environment"]
        assert "GF_AUTH_ANONYMOUS_ENABLED" not in environment
        assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] in {
            one["target"] for one in services["grafana"]["volumes"]
        }

    def test_secrets_are_made_once_differ_and_are_not_in_the_repository(self, tmp_path):
        before = {file.name: file.read_text() for file in secrets_folder().iterdir()}
        subprocess.run(["sh", MAKE_SECRETS, secrets_folder()], check=True)
        assert {file.name: file.read_text() for file in secrets_folder().iterdir()} == before
        subprocess.run(["sh", MAKE_SECRETS, tmp_path / "other"], check=True)
        others = {file.name: file.read_text() for file in (tmp_path / "other").iterdir()}
        assert others.keys() == before.keys() and all(others[name] != before[name] for name in before)
        assert (tmp_path / "other").stat().st_mode & 0o777 == 0o700
        found = re.findall(r"\b[0-9a-f]{64}\b", " ".join(before.values()))
        assert len(set(found)) == 8, "two tokens with their digests, Grafana's, two of Redis, and the salts'"
        ignored = subprocess.run(["git", "check-ignore", "deploy/compose/secrets/redis.conf"], cwd=ROOT)
        assert ignored.returncode == 0

    def test_without_secrets_compose_names_the_missing_file(self, tmp_path):
        done = subprocess.run(
            [COMPOSE, "config"], cwd=ROOT, env={**os.environ, "SECRETS": str(tmp_path)}, capture_output=True, text=True
        )
        assert done.returncode != 0 and "gateway.env" in done.stderr

    def test_every_image_has_a_version(self, services):
        images = {service["image"] for service in services.values()} - {"warmroute"}
        assert all(":" in image and not image.endswith(":latest") for image in images)


def on_the_page(start):
    """Return the shell lines of docs/how-to/deploy-with-compose.md that begin so, without their `start`."""
    text = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)).replace("\\\n", "")
    return [match[1] for match in re.finditer(rf"^{start} (.*?)(?: +#.*)?$", text, re.MULTILINE)]


@pytest.mark.parametrize("arguments", on_the_page("docker compose"))
def test_a_command_on_the_page_has_options_that_compose_knows(arguments):
    done = subprocess.run([COMPOSE, "--dry-run", *shlex.split(arguments), "--help"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Return the file's processes, started in the file's order: all but Grafana, of which there is no binary."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    names = (*WORKERS, "redis", "sidecar", *GATEWAYS, "haproxy", "prometheus")
    fleet = ComposeProcesses(compose_config(SIDECAR), names, tmp_path_factory.mktemp("compose"))
    try:
        fleet.start()
        public = f"http://{fleet.addresses['haproxy']}:8000"
        block_until(lambda: httpx.get(f"{public}/readyz").status_code == 200, 60)
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def client(fleet):
    return OpenAI(base_url=f"http://{fleet.addresses['haproxy']}:8000/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(fleet):
    return httpx.get(f"http://{fleet.addresses['haproxy']}:8000/v1/models").json()["data"][0]["id"]


def chat(client, model, text, **options):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **options)


def of_prometheus(fleet, query):
    url = f"http://{fleet.addresses['prometheus']}:9090/api/v1/query"
    return httpx.get(url, params={"query": query}).json()["data"]["result"]


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestProcesses:
    def test_both_gateways_answer_behind_haproxy_and_a_prefix_is_found_again(self, fleet, client, model):
        text = "Tell me of the harbour. " * 60
        answers = [chat(client, model, text, max_tokens=4) for _ in range(8)]
        assert all(answer.usage.completion_tokens == 4 for answer in answers)
        assert answers[-1].usage.prompt_tokens_details.cached_tokens > 200

        def both_answered():  # HAProxy may see the second gateway a check later
            chat(client, model, text, max_tokens=1)
            urls = [f"http://{fleet.addresses[name]}:8001/metrics" for name in GATEWAYS]
            pages = [httpx.get(url, headers=ADMIN).text for url in urls]
            sample = re.compile(r'warmroute_requests_total\{.*path="/v1/chat/completions",.*status="200"\}')
            return all(sample.search(page) for page in pages)

        block_until(both_answered, 30)

    def test_a_change_on_one_gateway_reaches_the_other_through_redis(self, fleet):
        one, other = (f"http://{fleet.addresses[name]}:8001/admin/v1" for name in GATEWAYS)
        block_until(lambda: len(httpx.get(f"{other}/replicas", headers=ADMIN).json()["replicas"]) == len(GATEWAYS), 30)
        assert httpx.put(f"{one}/policies/batch", json={"rule": "lpwl"}).status_code == 401
        changed = httpx.put(f"{one}/policies/batch", json={"rule": "lpwl"}, headers=ADMIN)
        assert changed.is_success, changed.text
        assert changed.headers["x-warmroute-shared"] == "fleet"
        block_until(lambda: "batch" in httpx.get(f"{other}/policies", headers=ADMIN).json()["policies"], 10)

    def test_redis_answers_nobody_without_a_password(self, fleet):
        asked = ["redis-cli", "-h", fleet.addresses["redis"], "get", "x"]
        assert "NOAUTH" in subprocess.run(asked, capture_output=True, text=True).stdout

    def test_both_gateways_find_the_worker_behind_its_sidecar_with_exact_residency(self, fleet):
        name = f"{fleet.addresses['sidecar']}:8080"

        def found(gateway):
            answer = httpx.get(f"http://{fleet.addresses[gateway]}:8001/admin/v1/workers/{name}", headers=ADMIN)
            candidates = answer.json().get("candidates", ())
            return [one["residency"] for one in candidates] == ["exact"] and answer.json()["source"] == "sidecars"

        block_until(lambda: all(map(found, GATEWAYS)), 60)

    def test_prometheus_scrapes_both_gateways(self, fleet):
        def up():
            return [row["value"][1] for row in of_prometheus(fleet, 'up{job="warmroute"}')] == ["1", "1"]

        block_until(up, 30)
        block_until(lambda: of_prometheus(fleet, "sum(warmroute_requests_total) > 0"), 30)

    def test_a_gateway_that_stops_ends_its_streams_and_the_other_takes_the_rest(self, fleet, client, model):
        streams = [chat(client, model, f"Count {n}", max_tokens=200, stream=True) for n in range(4)]
        heads = [next(iter(stream)) for stream in streams]
        assert len(heads) == 4
        leaving = fleet.processes["gateway-1"]
        leaving.terminate()
        while leaving.alive:
            assert chat(client, model, "Hello", max_tokens=1).usage.completion_tokens == 1
        assert all(list(stream)[-1].choices[0].finish_reason == "length" for stream in streams)
        assert leaving.wait(5) == 0
        fleet.start("gateway-1")
        up = f"http://{fleet.addresses['gateway-1']}:8000/readyz"
        block_until(lambda: httpx.get(up).status_code == 200, 30)

    def test_the_pages_requests_are_answered(self, fleet):
        lines = [line for line in on_the_page("curl") if "localhost:8000" in line]
        assert len(lines) == 2
        for line in lines:
            words = shlex.split(line.replace("localhost", fleet.addresses["haproxy"]))
            done = subprocess.run(["curl", "--fail", *words], capture_output=True, text=True, timeout=30)
            assert done.returncode == 0 and "warmroute-simulated" in done.stdout

    def test_haproxy_finds_no_mistake_in_its_file(self, fleet):
        (file,) = (path for path in fleet.files("haproxy"))
        checked = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")
