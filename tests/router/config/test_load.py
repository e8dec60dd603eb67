import pytest

from router.config.model import Config, PolicyConfig
from router.config.sources.yaml_file import read_yaml
from router.config.typed import TypedTree
from router.settings import load, load_with_places


def test_without_sources_every_setting_has_its_default():
    assert load({}, {}, None) == Config()


def test_flag_beats_variable_beats_file_beats_default(write):
    file = write("w.yaml", "port: 1001\nadmin_port: 1002\nlog_level: debug\n")
    env = {"WARMROUTE_PORT": "2001", "WARMROUTE_ADMIN_PORT": "2002"}
    config = load({"port": "3001"}, env, file)
    assert (config.port, config.admin_port, config.log_level, config.log_format) == (3001, 2002, "debug", "auto")


def test_sections_merge_key_by_key_and_lists_as_a_whole(write):
    file = write("w.yaml", "timeouts:\n  connect_s: 1\n  total_s: 1000\nworkers: [a:1, b:2]\n")
    env = {"WARMROUTE_TIMEOUTS__CONNECT_S": "3.5", "WARMROUTE_WORKERS": "http://c:3"}
    config = load({}, env, file)
    assert (config.timeouts.connect_s, config.timeouts.total_s) == (3.5, 1000)
    assert [worker.url for worker in config.workers] == ["http://c:3"]


@pytest.mark.parametrize(
    "text",
    ["http://a:1,http://b:2", "http://a:1, http://b:2,", '["http://a:1", {"url": "http://b:2"}]'],
)
def test_a_variable_takes_a_list_by_commas_or_as_json(text):
    config = load({}, {"WARMROUTE_WORKERS": text}, None)
    assert [worker.url for worker in config.workers] == ["http://a:1", "http://b:2"]


def test_mappings_in_a_variable_are_json():
    env = {"WARMROUTE_TIMEOUTS": '{"connect_s": 4}', "WARMROUTE_WORKERS": '{"url": "a:1"}'}
    config = load({}, env, None)
    assert config.timeouts.connect_s == 4
    assert config.workers[0].url == "a:1"


TIMES = [("30s", 30), ("250ms", 0.25), ("1.5m", 90), ("2min", 120), ("1h", 3600), ("7", 7), ("0.5", 0.5)]
SIZES = [("64MiB", 1 << 26), ("1GiB", 1 << 30), ("1.5KiB", 1536), ("20 MB", 20_000_000), ("3kB", 3000), ("5B", 5)]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_a_time_may_have_a_unit_in_every_source(write, text, seconds):
    file = write("w.yaml", f"timeouts:\n  connect_s: {text}\nroutes:\n  - {{name: r, slo: {{ttft: {text}}}}}\n")
    config = load({"timeouts.queue_s": text}, {"WARMROUTE_TIMEOUTS__TOTAL_S": text}, file)
    assert (config.timeouts.connect_s, config.timeouts.queue_s, config.timeouts.total_s) == (seconds, seconds, seconds)
    assert config.routes[0].slo.ttft == seconds


@pytest.mark.parametrize(("text", "size_bytes"), SIZES)
def test_a_size_may_have_a_unit_in_every_source(write, text, size_bytes):
    file = write("w.yaml", f"limits:\n  max_body_bytes: {text}\n")
    env = {"WARMROUTE_LIMITS__MAX_BUFFERED_BODY_BYTES": text}
    config = load({"limits.max_header_bytes": text}, env, file)
    limits = config.limits
    assert (limits.max_body_bytes, limits.max_header_bytes, limits.max_buffered_body_bytes) == (size_bytes,) * 3


def test_times_and_sizes_in_parameters_of_a_policy_may_have_a_unit(write):
    text = "policy:\n  name: lpwl\n  params:\n    hold: {max_s: 1m, share: 2s}\n    name_s: plain\n"
    loaded = read_yaml(text, "w.yaml", [])
    values = TypedTree(loaded).values
    assert values["policy"]["params"] == {"hold": {"max_s": 60, "share": "2s"}, "name_s": "plain"}


def test_text_that_only_looks_like_a_time_stays_text(write):
    file = write("w.yaml", "workers:\n  - {url: 'a:1', labels: {idle_s: 30s}}\nmodel_dir:\n")
    assert load({}, {}, file).workers[0].labels == {"idle_s": "30s"}


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("Yes", True), ("off", False), ("0", False)])
def test_a_variable_takes_true_and_false_by_several_words(text, value):
    assert load({}, {"WARMROUTE_ACCESS_LOG": text}, None).access_log is value


def test_usage_is_sampled_and_relearning_is_off_unless_asked_for(write):
    plain = Config()
    assert (plain.observe_usage, plain.residency.relearn) == (0.05, "passive")
    file = write("w.yaml", "observe_usage: 0\nresidency: {relearn: piggyback}\n")
    config = load({}, {}, file)
    assert config.observe_usage == 0.0
    assert config.residency.relearn == "piggyback"


def test_empty_variable_counts_as_not_set(write):
    file = write("w.yaml", "uds: public.sock\n")
    assert load({}, {"WARMROUTE_UDS": ""}, file).uds == "public.sock"


def test_other_programs_variables_and_kubernetes_service_links_are_left_alone():
    env = {
        "PATH": "/bin",
        "WARMROUTE_SERVICE_HOST": "10.0.0.1",
        "WARMROUTE_SERVICE_PORT": "8000",
        "WARMROUTE_SERVICE_PORT_HTTP": "8000",
        "WARMROUTE_PORT": "tcp://10.0.0.1:8000",
        "WARMROUTE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "WARMROUTE_ADMIN_PORT": "tcp://10.0.0.2:8001",
        "WARMROUTE_ADMIN_PORT_8001_TCP": "tcp://10.0.0.2:8001",
    }
    assert load({}, env, None) == Config()


def test_variable_names_the_file(write):
    write("w.yaml", "port: 77\n")
    assert load({}, {"WARMROUTE_CONFIG": "w.yaml"}, None).port == 77


def test_empty_file_and_empty_section(write):
    assert load({}, {}, write("empty.yaml", "# nothing\n")) == Config()
    assert (
        load({}, {}, write("sections.yaml", "timeouts:\nworkers:\nuds:\nmodels:\n  m:\n")).timeouts == Config().timeouts
    )


def test_yaml_anchors_and_merge_keys(write):
    text = "models:\n  a: &local {dir: m, chat_template: t}\n  b: {<<: *local, chat_template: u}\n"
    file = write("w.yaml", text)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (file.absolute().parent / "m").mkdir(exist_ok=True)
        write(f"m/{name}", "{}")
    write("t", ""), write("u", "")
    models = load({}, {}, file).models
    assert (models["b"].dir, models["b"].chat_template) == ("m", "u")


def test_policy_parameters_by_flag_variable_and_file(write):
    file = write("w.yaml", "policy: {rule: marginal_cost, seed: 3}\n")
    config = load({"policy.seed": "4"}, {"WARMROUTE_POLICY__RULE": "round_robin"}, file)
    assert (config.policy.rule, config.policy.seed) == ("round_robin", 4)


def test_another_policy_does_not_inherit_the_parameters(write):
    file = write("w.yaml", "policy: {rule: no_such_policy, params: {nonsense: 1}}\n")
    assert load({"policy.rule": "round_robin"}, {}, file).policy.params == {}
    file = write("w.yaml", "policies: {batch: {rule: no_such_policy, params: {nonsense: 1}, hold: {prefills: 3}}}\n")
    named = load({"policies.batch.rule": "lpwl", "policies.batch.hold": True}, {}, file).policies["batch"]
    assert named == PolicyConfig("lpwl", hold={"prefills": 3})


def test_wrappers_by_flag_variable_and_file(write):
    file = write("w.yaml", "policy: {rule: lpwl, hold: {prefills: 3}, lanes: false}\n")
    policy = load({}, {}, file).policy
    assert (policy.hold, policy.lanes) == ({"prefills": 3}, False)
    variables = {"WARMROUTE_POLICY__LANES": "true", "WARMROUTE_POLICY__HOLD__MAX_S": "2.5"}
    assert load({}, variables, file).policy == PolicyConfig("lpwl", {}, {"prefills": 3, "max_s": 2.5}, True)
    assert load({"policy.hold": '{"kv_space": 1}'}, {}, None).policy.hold == {"kv_space": 1}
    assert load({"policy.hold": False}, {}, file).policy.hold is False
    assert load({}, {}, None).policy == PolicyConfig(hold=None, lanes=None)


def test_switching_a_wrapper_on_keeps_its_parameters_and_another_rule_keeps_its_wrappers(write):
    file = write("w.yaml", "policy: {rule: lpwl, hold: {prefills: 3}}\n")
    policy = load({"policy.hold": True, "policy.rule": "lmetric"}, {}, file).policy
    assert (policy.rule, policy.hold) == ("lmetric", {"prefills": 3})


def test_values_may_come_as_values():
    config = load({"workers": ["a:1"], "port": 0, "access_log": True, "uds": None}, {}, None)
    assert (config.workers[0].url, config.port, config.access_log, config.uds) == ("a:1", 0, True, None)


def test_places_are_those_of_the_winning_source(write):
    file = write("w.yaml", "\nport: 1001\nhost: h\nlog_level: info\n")
    places = load_with_places({"port": "1"}, {"WARMROUTE_HOST": "g"}, file).places
    assert places["port",] == "--port"
    assert places["host",] == "WARMROUTE_HOST"
    assert places["log_level",] == "w.yaml:4:1"


def test_a_value_is_placed_at_its_own_line(write):
    text = (
        "\nhost: |\n  port: 5\n\nport: 1\nworkers:\n  - url: a:1\n    kv_events:\n      endpoint: tcp://a:1\n"
        "  - url: b:1\npolicy:\n  params:\n    a: 1\n    b: 2\n"
    )
    values = {"host": "h", "policy.rule": "round_robin", "policy.params": {}}
    places = load_with_places(values, {}, write("w.yaml", text)).places
    assert places["port",] == "w.yaml:5:1"
    assert (places["workers",], places["workers", 0]) == ("w.yaml:6:1", "w.yaml:7:5")
    assert places["workers", 0, "kv_events"] == "w.yaml:8:5"
    assert places["workers", 1] == "w.yaml:10:5"
    assert places["policy", "params", "a"] == "w.yaml:13:5"
    assert places["policy", "params", "b"] == "w.yaml:14:5"


def test_lowering_the_total_alone_is_no_contradiction():
    assert load({"timeouts.total_s": "5"}, {}, None).timeouts.first_event_s == 600
