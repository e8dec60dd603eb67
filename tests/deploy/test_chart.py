"""The Helm chart, as Helm itself renders it, against the schemas of Kubernetes and the gateway's own settings."""

import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from router.cli import serve
from router.cli.main import build_parser
from router.cli.options import read_settings
from router.metrics.catalogue import CATALOGUE
from router.picker.flags import settings_of
from router.picker.pools.kubernetes import GROUPS
from router.picker.settings import picker_config
from router.security.token import admin_tokens
from router.settings import load

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "warmroute"
TOOLS = ROOT / ".venv-deploy" / "bin"
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "InferencePool", "HTTPRoute"}
"""Kinds that are no part of Kubernetes: there is no schema here, so tests look at their fields."""
EVERYTHING = {
    "workers": {"enabled": True, "args": ["--max-model-len=8192"], "env": [{"name": "HF_TOKEN", "value": "x"}]},
    "autoscaling": {"enabled": True, "role": "decode"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "p"}, "authorization": {"name": "t", "key": "token"}},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Warmroute"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "p"}},
    "networkPolicy": {"admin": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "discovery": {"inferencePool": "llama", "namespace": "models", "defaults": {"role": "decode"}},
    "config": {
        "headers": {"worker": True},
        "timeouts": {"queue_s": 5},
        "discovery": {"sources": {"lab": {"file": "/models/workers.yaml"}}},
    },
    "env": [{"name": "WARMROUTE_ADMIN_TOKEN", "value": "0123456789abcdef0123456789abcdef"}],
    "volumes": [{"name": "models", "emptyDir": {}}],
    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "gateway", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"team": "ml"},
    "service": {"type": "LoadBalancer", "annotations": {"internal": "true"}},
    "image": {"digest": "sha256:" + "0" * 64},
}
WITHOUT_SIDECAR = {"workers": {"enabled": True, "sidecar": {"enabled": False}}}
BARE = {
    "rbac": {"create": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
}
VALUES = {"default": {}, "everything": EVERYTHING, "without sidecar": WITHOUT_SIDECAR, "bare": BARE}
PICKER = {"mode": "picker", "picker": {"pool": {"matchLabels": {"app": "vllm"}}, "route": {"gateway": "inference"}}}
POOLS = {
    "chat": {"port": 9002, "matchLabels": {"app": "chat"}, "targetPorts": [8000, 8001], "failureMode": "FailOpen"},
    "embed.v2": {"port": 9004, "matchLabels": {"app": "embed"}},
    "theirs": {"port": 9006},
}
SEVERAL = {"mode": "picker", "picker": {"pools": POOLS}, "config": {"picker": {"learn": "headers"}}}
BOTH_MODES = {
    **VALUES,
    "picker": PICKER,
    "several pools": SEVERAL,
    "picker with workers": {"mode": "picker", "workers": {"enabled": True}},
}
OF_OTHERS = ("rules:", "apiVersion:")
"""How the blocks on the page begin that are no values of the chart."""
PAGE = (ROOT / "docs" / "how-to" / "deploy-with-kubernetes.md").read_text()
every_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
both_modes = pytest.mark.parametrize("values", BOTH_MODES.values(), ids=BOTH_MODES)

pytestmark = pytest.mark.skipif(not (TOOLS / "helm").exists(), reason="Helm is not installed: run `make deploy-env`")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(tool, *arguments, **options):
    return subprocess.run(
        [TOOLS / tool, *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


@cache
def template(values):
    command = ["template", "warmroute", str(CHART), "--namespace", "warmroute", "--values", "-"]
    return run("helm", *command, input=values)


def rendered(values):
    done = template(json.dumps(values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def one(objects, kind, name="warmroute"):
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def container(workload, name):
    spec = workload["spec"]["template"]["spec"]
    (found,) = (each for each in (*spec.get("initContainers", ()), *spec["containers"]) if each["name"] == name)
    return found


def selects(selector, workload):
    return selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


@both_modes
def test_helm_lint_finds_nothing(values, tmp_path):
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    done = run("helm", "lint", "--strict", "--quiet", "--values", str(tmp_path / "values.yaml"), str(CHART))
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@both_modes
def test_every_object_has_the_fields_of_its_kind(values, version, tmp_path):
    objects = [each for each in rendered(values) if each["kind"] not in OF_OPERATORS]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    done = run("kubernetes-validate", "--strict", "--kubernetes-version", version, str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed for resource ") == len(objects)


def test_the_validator_finds_a_misspelt_field(tmp_path):
    file = tmp_path / "service.yaml"
    file.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {portz: []}\n")
    assert run("kubernetes-validate", "--strict", str(file)).returncode != 0


@both_modes
def test_no_two_objects_have_one_name_and_all_are_in_a_namespace(values):
    keys = [(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]) for each in rendered(values)]
    assert len(keys) == len(set(keys))


class TestGateway:
    @every_values
    def test_its_settings_are_accepted_by_the_gateway(self, values, tmp_path):
        objects = rendered(values)
        config = settings(objects, tmp_path, {each["name"]: each["value"] for each in values.get("env", ())})
        ports = {
            each["name"]: each["containerPort"] for each in container(one(objects, "Deployment"), "gateway")["ports"]
        }
        assert ports == {"http": config.port, "admin": config.admin_port}
        assert config.timeouts.queue_s == values.get("config", {}).get("timeouts", {}).get("queue_s", 10.0)

    def test_its_command_is_serve_with_the_mounted_file(self):
        gateway = container(one(rendered({}), "Deployment"), "gateway")
        arguments = build_parser().parse_args(gateway["args"])
        assert arguments.run is serve.run
        assert {"name": "config", "mountPath": "/etc/warmroute", "readOnly": True} in gateway["volumeMounts"]

    def test_it_has_longer_to_end_than_its_drain(self, tmp_path):
        objects = rendered({"drain": {"delaySeconds": 7, "seconds": 300}})
        timeouts = settings(objects, tmp_path).timeouts
        assert (timeouts.drain_delay_s, timeouts.drain_s) == (7, 300)
        assert one(objects, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 307

    @pytest.mark.parametrize(
        ("values", "source"),
        [
            ({}, {"emptyDir": {"sizeLimit": "2Gi"}}),
            ({"tokenizers": {"claim": "shared"}}, {"persistentVolumeClaim": {"claimName": "shared"}}),
        ],
    )
    def test_fetched_tokenizers_lie_in_a_volume(self, values, source):
        workload = one(rendered(values), "Deployment")
        gateway = container(workload, "gateway")
        (home,) = (each["value"] for each in gateway["env"] if each["name"] == "HF_HOME")
        assert {"name": "tokenizers", "mountPath": home} in gateway["volumeMounts"]
        assert {"name": "tokenizers", **source} in workload["spec"]["template"]["spec"]["volumes"]

    def test_probes_ask_the_admin_port_and_liveness_does_not_need_a_worker(self):
        gateway = container(one(rendered({}), "Deployment"), "gateway")
        asked = {kind: gateway[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
        assert all(each["port"] == "admin" for each in asked.values())
        assert [each["path"] for each in asked.values()] == ["/livez", "/livez", "/readyz"]

    @pytest.mark.parametrize("name", ["gateway", "sidecar"])
    def test_our_containers_have_no_rights(self, name):
        suffix = "-workers" if name == "sidecar" else ""
        context = container(one(rendered(EVERYTHING), "Deployment", f"warmroute{suffix}"), name)["securityContext"]
        assert context["readOnlyRootFilesystem"] and context["runAsNonRoot"] and context["runAsUser"] == 10001
        assert context["capabilities"] == {"drop": ["ALL"]} and not context["allowPrivilegeEscalation"]

    def test_services_budget_and_policy_select_gateways_and_not_workers(self):
        objects = rendered(EVERYTHING)
        selectors = [
            one(objects, "Service")["spec"]["selector"],
            one(objects, "Service", "warmroute-admin")["spec"]["selector"],
            one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
            one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        ]
        gateways, workers = one(objects, "Deployment"), one(objects, "Deployment", "warmroute-workers")
        assert all(selects(each, gateways) and not selects(each, workers) for each in selectors)


def settings(objects, folder, env=None):
    file = folder / "warmroute.yaml"
    file.write_text(one(objects, "ConfigMap")["data"]["warmroute.yaml"])
    return load({}, env or {}, file)


def rights(objects):
    """Return the resources that the gateways may read, by namespace, with the checks that hold for each Role."""
    found = {}
    for role in (each for each in objects if each["kind"] == "Role"):
        assert all(rule["verbs"] == ["get", "list", "watch"] for rule in role["rules"])
        found[role["metadata"]["namespace"]] = {name for rule in role["rules"] for name in rule["resources"]}
    bindings = [each for each in objects if each["kind"] == "RoleBinding"]
    assert [each["metadata"]["namespace"] for each in bindings] == list(found)
    account = one(objects, "ServiceAccount")["metadata"]
    for binding in bindings:
        (subject,) = binding["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    return found


def environment(objects):
    """Return the gateway's environment, with the values of the chart's Secret."""
    secrets = next((each["stringData"] for each in objects if each["kind"] == "Secret"), {})
    gateway = container(one(objects, "Deployment"), "gateway")
    found = {}
    for each in gateway["env"]:
        source = each.get("valueFrom", {}).get("secretKeyRef")
        if source is None:
            found[each["name"]] = each["value"]
        elif source["key"] in secrets:
            assert source["name"] == "warmroute-secrets"
            found[each["name"]] = secrets[source["key"]]
        else:
            assert source["optional"]
    return found


class TestSecrets:
    def test_the_gateways_have_tokens_and_a_secret_for_salts_which_differ_by_installation(self, tmp_path):
        objects = rendered({})
        config = settings(objects, tmp_path, environment(objects))
        secrets = one(objects, "Secret", "warmroute-secrets")["stringData"]
        tokens = admin_tokens(config)
        roles = [tokens.caller_of(f"Bearer {secrets[key]}").role for key in ("admin-token", "metrics-token")]
        assert roles == ["admin", "read"]
        assert config.auth.isolation_secret == secrets["isolation-secret"]
        template.cache_clear()
        others = one(rendered({}), "Secret", "warmroute-secrets")["stringData"]
        assert all(others[key] != secrets[key] for key in secrets)

    def test_prometheus_gets_a_token_that_may_only_read(self):
        (endpoint,) = one(rendered({"serviceMonitor": {"enabled": True}}), "ServiceMonitor")["spec"]["endpoints"]
        assert endpoint["authorization"] == {"credentials": {"name": "warmroute-secrets", "key": "metrics-token"}}

    def test_a_secret_of_the_users_takes_the_place_of_the_charts(self):
        objects = rendered({"secrets": {"name": "mine"}, "config": {"redis": {"url": "redis://r"}}})
        assert not [each for each in objects if each["kind"] == "Secret"]
        gateway = container(one(objects, "Deployment"), "gateway")
        sources = [each["valueFrom"]["secretKeyRef"] for each in gateway["env"] if "valueFrom" in each]
        assert {(each["name"], each["key"], each.get("optional", False)) for each in sources} == {
            ("mine", "admin-token", False),
            ("mine", "admin-tokens", True),
            ("mine", "isolation-secret", False),
            ("mine", "redis-password", True),
        }

    @pytest.mark.parametrize(
        ("values", "missing"),
        [
            ({"config": {"admin_token_file": "/keys/token"}}, "WARMROUTE_ADMIN_TOKEN"),
            ({"config": {"admin_tokens": ["a admin sha256:" + "0" * 64]}}, "WARMROUTE_ADMIN_TOKENS"),
            ({"config": {"auth": {"isolate_cache": "off"}}}, "WARMROUTE_AUTH__ISOLATION_SECRET"),
        ],
    )
    def test_what_the_settings_give_in_another_way_is_not_given_twice(self, values, missing):
        assert missing in environment(rendered({})) and missing not in environment(rendered(values))

    def test_the_users_environment_counts(self):
        env = [{"name": "WARMROUTE_ADMIN_TOKEN", "value": "x" * 32}]
        assert environment(rendered({"env": env}))["WARMROUTE_ADMIN_TOKEN"] == "x" * 32

    @pytest.mark.parametrize(
        "config",
        [
            {"admin_token": "x" * 32},
            {"redis": {"password": "x"}},
            {"redis": {"sentinel_password": "x"}},
            {"auth": {"isolation_secret": "x"}},
            {"workers": [{"url": "http://a:1", "api_key": "x"}]},
            {"discovery": {"sources": {"lab": {"file": "/x", "api_key": "x"}}}},
        ],
    )
    def test_a_secret_in_the_config_map_is_refused(self, config):
        done = template(json.dumps({"config": config}))
        assert done.returncode != 0 and "ConfigMap" in done.stderr


class TestDiscovery:
    @pytest.mark.parametrize(
        ("values", "kind", "reads"),
        [
            ({"service": "vllm"}, "service", {"endpointslices"}),
            ({"pods": "app=vllm,gpu in (a,b)", "port": 8000}, "pods", {"pods"}),
            ({"inferencePool": "llama"}, "pool", {"pods", "inferencepools"}),
        ],
    )
    def test_a_value_names_the_workers_and_the_rights_follow(self, values, kind, reads, tmp_path):
        objects = rendered({"discovery": {**values, "namespace": "models", "defaults": {"role": "decode"}}})
        (source,) = settings(objects, tmp_path).discovery.sources.values()
        assert getattr(source.kubernetes, kind) == next(iter(values.values()))
        assert (source.kubernetes.namespace, source.kubernetes.port) == ("models", values.get("port"))
        assert source.defaults == {"role": "decode"}
        assert rights(objects) == {"models": reads}
        assert one(objects, "Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"]

    def test_without_a_source_in_kubernetes_the_gateways_have_no_rights_and_no_token(self):
        objects = rendered({"config": {"discovery": {"sources": {"rack": {"dns": {"name": "vllm", "port": 8000}}}}}})
        assert rights(objects) == {}
        assert not one(objects, "Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"]

    def test_sources_in_config_get_their_rights_too(self):
        sources = {
            "one": {"kubernetes": {"pods": "app=a"}},
            "two": {"kubernetes": {"pool": "p", "namespace": "models"}},
        }
        objects = rendered({"discovery": {"service": "vllm"}, "config": {"discovery": {"sources": sources}}})
        assert rights(objects) == {"models": {"pods", "inferencepools"}, "warmroute": {"endpointslices", "pods"}}

    def test_without_rbac_the_token_is_there_for_rights_from_elsewhere(self):
        objects = rendered({"discovery": {"service": "vllm"}, "rbac": {"create": False}})
        assert rights(objects) == {}
        assert one(objects, "Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"]

    @pytest.mark.parametrize("values", [EVERYTHING, WITHOUT_SIDECAR], ids=["sidecar", "without sidecar"])
    def test_the_charts_own_workers_are_found(self, values, tmp_path):
        objects = rendered({**values, "env": []})
        source = settings(objects, tmp_path).discovery.sources["workers"]
        service = one(objects, "Service", source.kubernetes.service)
        ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
        assert selects(service["spec"]["selector"], one(objects, "Deployment", "warmroute-workers"))
        assert "http" in ports and source.kubernetes.port is None
        named = {
            name: str(ports[of]) for name, of in (("kv-events-port", "kv-events"), ("kv-replay-port", "kv-replay"))
        }
        assert source.defaults == named
        assert "endpointslices" in rights(objects)["warmroute"]

    def test_other_sources_make_new_pods_and_other_settings_do_not(self):
        def pod(values):
            return one(rendered(values), "Deployment")["spec"]["template"]

        assert pod({"config": {"timeouts": {"queue_s": 9}}}) == pod({})
        assert pod({"discovery": {"pods": "app=a"}}) != pod({"discovery": {"pods": "app=b"}})


class TestOperators:
    def test_the_service_monitor_selects_the_admin_port_of_the_admin_service_alone(self):
        objects = rendered(EVERYTHING)
        monitor = one(objects, "ServiceMonitor")
        assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        selected = [
            each for each in objects if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
        ]
        assert [each["metadata"]["name"] for each in selected] == ["warmroute-admin"]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in selected[0]["spec"]["ports"]]
        assert endpoint["authorization"] == {"credentials": {"name": "t", "key": "token"}}
        assert monitor["metadata"]["labels"]["release"] == "p"

    def test_the_autoscaler_scales_the_workers_by_a_metric_that_exists(self):
        scaler = one(rendered(EVERYTHING), "HorizontalPodAutoscaler", "warmroute-workers")
        (metric,) = scaler["spec"]["metrics"]
        assert metric["external"]["metric"]["name"] in {spec.exported_name for spec in CATALOGUE}
        assert metric["external"]["metric"]["selector"] == {"matchLabels": {"role": "decode"}}
        assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
        assert scaler["spec"]["scaleTargetRef"]["name"] == "warmroute-workers"
        assert "replicas" not in one(rendered(EVERYTHING), "Deployment", "warmroute-workers")["spec"]


class TestWorkers:
    def test_the_sidecar_is_one_of_kubernetes_and_starts_without_vllm(self):
        spec = one(rendered(EVERYTHING), "Deployment", "warmroute-workers")["spec"]["template"]["spec"]
        (sidecar,) = spec["initContainers"]
        assert sidecar["restartPolicy"] == "Always"
        assert sidecar["startupProbe"]["httpGet"]["path"] == "/livez"
        assert sidecar["readinessProbe"]["httpGet"]["path"] == "/readyz"

    def test_vllm_drains_before_it_stops_and_has_the_time_for_it(self):
        values = {"workers": {"enabled": True, "sidecar": {"drainSeconds": 900}}}
        workers = one(rendered(values), "Deployment", "warmroute-workers")
        command = container(workers, "vllm")["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:2] == ["python3", "-c"] and "127.0.0.1:8002/drain" in command[2]
        compile(command[2], "preStop", "exec")
        assert {"name": "WARMROUTE_TIMEOUTS__DRAIN_S", "value": "900"} in container(workers, "sidecar")["env"]
        assert workers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 900 + 30

    def test_vllm_listens_on_loopback_behind_a_sidecar_and_the_service_leads_to_the_sidecar(self):
        objects = rendered(EVERYTHING)
        assert "--host=127.0.0.1" in container(one(objects, "Deployment", "warmroute-workers"), "vllm")["args"]
        ports = {each["name"]: each["port"] for each in one(objects, "Service", "warmroute-workers")["spec"]["ports"]}
        assert ports == {"http": 8080, "kv-events": 5557, "kv-replay": 5558}
        workers = one(objects, "Deployment", "warmroute-workers")
        opened = [*container(workers, "sidecar")["ports"], *container(workers, "vllm")["ports"]]
        assert {each["name"]: each["containerPort"] for each in opened} == ports

    @pytest.mark.parametrize("values", [EVERYTHING, WITHOUT_SIDECAR], ids=["sidecar", "without sidecar"])
    def test_only_gateways_and_named_peers_reach_a_worker_and_its_kv_events(self, values):
        peer = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
        policies = {**values.get("networkPolicy", {}), "workers": [peer]}
        objects = rendered({**values, "networkPolicy": policies})
        policy = one(objects, "NetworkPolicy", "warmroute-workers")["spec"]
        workers = one(objects, "Deployment", "warmroute-workers")
        assert selects(policy["podSelector"]["matchLabels"], workers) and policy["policyTypes"] == ["Ingress"]
        (rule,) = policy["ingress"]
        gateways, named = rule["from"]
        assert selects(gateways["podSelector"]["matchLabels"], one(objects, "Deployment")) and named == peer
        spec = workers["spec"]["template"]["spec"]
        open_ports = [
            port["name"]
            for each in (*spec.get("initContainers", ()), *spec["containers"])
            for port in each.get("ports") or ()
        ]
        assert [each["port"] for each in rule["ports"]] == open_ports

    def test_without_a_sidecar_vllm_serves_itself(self):
        objects = rendered(WITHOUT_SIDECAR)
        workers = one(objects, "Deployment", "warmroute-workers")
        assert "initContainers" not in workers["spec"]["template"]["spec"]
        vllm = container(workers, "vllm")
        assert "--host=0.0.0.0" in vllm["args"] and "lifecycle" not in vllm
        assert vllm["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}

    def test_kv_events_are_on_with_replay(self):
        (option,) = (
            each
            for each in container(one(rendered(EVERYTHING), "Deployment", "warmroute-workers"), "vllm")["args"]
            if each.startswith("--kv-events-config=")
        )
        events = json.loads(option.partition("=")[2])
        assert events["enable_kv_cache_events"] and events["replay_endpoint"] == "tcp://*:5558"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "/replicas"),
        ({"drain": {"seconds": "30s"}}, "/drain/seconds"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"workers": {"sidecar": {"port": 1}}}, "/workers/sidecar"),
        ({"config": {"port": 9000}}, "config.port"),
        ({"config": {"timeouts": {"drain_s": 9}}}, "drain.seconds"),
        ({"autoscaling": {"enabled": True}}, "autoscaling.target.name"),
        ({"autoscaling": {"role": "No Role"}}, "/autoscaling/role"),
        ({"discovery": {"services": "vllm"}}, "/discovery"),
        ({"discovery": {"service": "vllm", "pods": "app=vllm"}}, "one of service, pods and inferencePool"),
        ({"discovery": {"namespace": "models"}}, "one of service, pods and inferencePool"),
        ({"discovery": {"inferencePool": "llama", "port": 8000}}, "discovery.port"),
        ({"discovery": {"service": "vllm", "port": 0}}, "/discovery/port"),
        (
            {"discovery": {"service": "v"}, "config": {"discovery": {"sources": {"cluster": {"redis": {}}}}}},
            "config.discovery.sources.cluster",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, named):
    done = template(json.dumps(values))
    assert done.returncode != 0 and named in done.stderr


class TestPage:
    """docs/how-to/deploy-with-kubernetes.md, tried from its own text."""

    @pytest.mark.parametrize("text", [each for each in blocks("yaml") if not each.startswith(OF_OTHERS)])
    def test_its_values_render_to_settings_that_the_gateway_accepts(self, text, tmp_path):
        settings = one(rendered(yaml.safe_load(text)), "ConfigMap")["data"]["warmroute.yaml"]
        (tmp_path / "api-keys").touch()
        file = tmp_path / "warmroute.yaml"
        file.write_text(settings.replace("/etc/warmroute-keys", str(tmp_path)))
        load({}, {}, file)

    def test_its_helm_commands_render(self):
        commands = [line for block in blocks("sh") for line in block.replace("\\\n", "").splitlines()]
        texts = [*[line for line in commands if line.startswith("helm")], *re.findall(r"`(helm template .*?)`", PAGE)]
        assert len(texts) == 2
        for text in texts:
            words = shlex.split(text)[2:]
            done = run("helm", "template", *[word for word in words if word != "--create-namespace"], cwd=ROOT)
            assert done.returncode == 0, done.stderr
            assert "warmroute" in done.stdout

    def test_kedas_object_scales_the_charts_workers_by_the_same_metric(self):
        (scaled,) = (yaml.safe_load(each) for each in blocks("yaml") if each.startswith("apiVersion: keda.sh"))
        assert scaled["spec"]["scaleTargetRef"]["name"] == "warmroute-workers"
        (trigger,) = scaled["spec"]["triggers"]
        assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
        assert "warmroute_desired_replicas{" in trigger["metadata"]["query"]

    def test_the_adapters_query_is_over_the_metric_that_the_autoscaler_reads(self):
        (rules,) = (yaml.safe_load(each) for each in blocks("yaml") if each.startswith("rules:"))
        scaler = one(rendered(EVERYTHING), "HorizontalPodAutoscaler", "warmroute-workers")
        assert (
            rules["rules"]["external"][0]["seriesQuery"] == scaler["spec"]["metrics"][0]["external"]["metric"]["name"]
        )


def test_the_plain_manifests_are_those_of_the_chart():
    command = ["template", "warmroute", str(CHART), "--namespace", "warmroute", "--set", "discovery.service=vllm"]
    made = run("helm", *command, "--set", "secrets.name=warmroute-secrets").stdout
    assert (ROOT / "deploy" / "kubernetes" / "warmroute.yaml").read_text() == made, "run `make manifests`"


def test_the_charts_version_is_the_projects():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))
    assert project == f'version = "{chart["appVersion"]}"'


class TestPicker:
    def test_the_pool_selects_the_workers_and_names_the_service_of_the_picker(self):
        objects = rendered(PICKER)
        pool, service = one(objects, "InferencePool"), one(objects, "Service")
        assert pool["spec"] == {
            "selector": {"matchLabels": {"app": "vllm"}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "warmroute", "port": {"number": 9002}, "failureMode": "FailClose"},
        }
        assert [port["port"] for port in service["spec"]["ports"]] == [9002]
        assert selects(service["spec"]["selector"], one(objects, "Deployment"))

    def test_the_route_leads_to_the_pool(self):
        (rule,) = one(rendered(PICKER), "HTTPRoute")["spec"]["rules"]
        group = "inference.networking.k8s.io"
        assert rule["backendRefs"] == [{"group": group, "kind": "InferencePool", "name": "warmroute"}]

    def test_the_pool_of_the_chart_s_own_workers_selects_their_pods_and_ports(self):
        objects = rendered(BOTH_MODES["picker with workers"])
        pool, workers = one(objects, "InferencePool"), one(objects, "Deployment", "warmroute-workers")
        assert selects(pool["spec"]["selector"]["matchLabels"], workers)
        assert pool["spec"]["targetPorts"] == [{"number": 8080}]

    def test_a_pool_of_others_is_watched_and_not_made(self, tmp_path):
        objects = rendered({"mode": "picker", "picker": {"pool": {"create": False, "name": "llama"}}})
        assert not [each for each in objects if each["kind"] == "InferencePool"]
        sources = settings(objects, tmp_path, {}).discovery.sources
        assert sources["pool"].kubernetes.pool == "llama"

    def test_kubernetes_asks_the_health_service_as_gateways_do(self):
        picker = container(one(rendered(PICKER), "Deployment"), "picker")
        asked = [picker[f"{kind}Probe"]["grpc"] for kind in ("startup", "liveness", "readiness")]
        assert asked == [{"port": 9003, "service": name} for name in ("liveness", "liveness", "readiness")]
        assert {"name": "health", "containerPort": 9003} in picker["ports"]
        settings = settings_of(build_parser().parse_args(picker["args"]))
        assert settings["picker.health_port"].value == "9003"

    def test_several_pools_have_a_port_and_a_source_each(self, tmp_path):
        objects = rendered(SEVERAL)
        made = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "InferencePool"}
        assert made == {
            "chat": {
                "selector": {"matchLabels": {"app": "chat"}},
                "targetPorts": [{"number": 8000}, {"number": 8001}],
                "endpointPickerRef": {"name": "warmroute", "port": {"number": 9002}, "failureMode": "FailOpen"},
            },
            "embed.v2": {
                "selector": {"matchLabels": {"app": "embed"}},
                "targetPorts": [{"number": 8000}],
                "endpointPickerRef": {"name": "warmroute", "port": {"number": 9004}, "failureMode": "FailClose"},
            },
        }
        found = settings(objects, tmp_path, {})
        assert {name: (one.port, one.workers) for name, one in found.picker.pools.items()} == {
            name: (one["port"], {"pool": name}) for name, one in POOLS.items()
        }
        assert found.picker.learn == "headers"
        sources = found.discovery.sources
        assert {name: (one.kubernetes.pool, one.defaults) for name, one in sources.items()} == {
            f"pool-{name.replace('.', '-')}": (name, {"label.pool": name}) for name in POOLS
        }

    def test_several_pools_are_reached_at_their_ports_and_the_picker_takes_these_settings(self, tmp_path):
        objects = rendered(SEVERAL)
        ports = [one["port"] for one in POOLS.values()]
        picker, service = container(one(objects, "Deployment"), "picker"), one(objects, "Service")
        assert [port["port"] for port in service["spec"]["ports"]] == ports
        assert [port["containerPort"] for port in picker["ports"] if port["name"].startswith("grpc")] == ports
        open_ports = one(objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
        assert [port["port"] for port in open_ports] == [port["name"] for port in service["spec"]["ports"]]
        file = tmp_path / "warmroute.yaml"
        file.write_text(one(objects, "ConfigMap")["data"]["warmroute.yaml"])
        arguments = build_parser().parse_args(picker["args"])
        arguments.further_settings, arguments.config = settings_of(arguments), file
        assert len(picker_config(read_settings(arguments)).picker.pools) == len(POOLS)

    def test_it_may_read_pods_and_pools(self):
        rules = one(rendered(PICKER), "Role", "warmroute-discovery")["rules"]
        groups = {resource: rule["apiGroups"] for rule in rules for resource in rule["resources"]}
        both = sorted(group.partition("/")[0] for group in GROUPS)
        assert {resource: sorted(found) for resource, found in groups.items()} == {
            "pods": [""],
            "inferencepools": ["inference.networking.k8s.io"],
            "inferenceobjectives": both,
            "inferencemodelrewrites": both,
        }

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ({"mode": "picker"}, "picker.pool.matchLabels"),
            ({"mode": "picker", "picker": {"pool": {"create": False}}}, "picker.pool.name"),
            ({**PICKER, "discovery": {"service": "vllm"}}, "picker.pool"),
            ({"mode": "proxy"}, "mode"),
            ({"mode": "picker", "picker": {"pools": POOLS, "route": {"gateway": "g"}}}, "picker.route"),
        ],
    )
    def test_a_picker_without_workers_is_refused(self, values, reason):
        done = template(json.dumps(values))
        assert done.returncode != 0
        assert reason in done.stderr
