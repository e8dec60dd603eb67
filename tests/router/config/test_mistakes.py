import re
from pathlib import Path

import pytest

from router.config.problems import ConfigError
from router.settings import load

YAML = [
    # text, place, part of the problem, part of the fix
    ("port: 1\nprot: 2\n", "w.yaml:2", "unknown setting prot", "did you mean port?"),
    ("timeouts:\n  conect_s: 2\n", "w.yaml:2", "unknown setting timeouts.conect_s", "did you mean timeouts.connect_s?"),
    ("connect_s: 2\n", "w.yaml:1", "unknown setting connect_s", "did you mean timeouts.connect_s?"),
    ("health:\n  zzzzzz: 2\n", "w.yaml:2", "unknown setting health.zzzzzz", "write one of probe_interval_s"),
    ("port: eighty\n", "w.yaml:1", 'port is "eighty" (text)', "a whole number from 0 to 65535, such as 8000"),
    ("port: '8000'\n", "w.yaml:1", 'port is "8000" (text)', "a whole number from 0 to 65535"),
    ("port: 70000\n", "w.yaml:1", "port is 70000", "a whole number from 0 to 65535"),
    ("port: true\n", "w.yaml:1", "port is true", "a whole number"),
    ("port:\n", "w.yaml:1", "port is null", "a whole number"),
    ("access_log: 1\n", "w.yaml:1", "access_log is 1", "write true or false"),
    ("host: 17\n", "w.yaml:1", "host is 17", "write text"),
    (
        "timeouts:\n\n  total_s: 0\n",
        "w.yaml:3",
        "timeouts.total_s is 0",
        "a number above 0, such as 3600.0, or a time such as 30s or 250ms",
    ),
    ("timeouts:\n  total_s: 5 parsecs\n", "w.yaml:2", 'total_s is "5 parsecs" (text)', "a time such as 30s or 250ms"),
    ("timeouts:\n  total_s: 1MiB\n", "w.yaml:2", 'timeouts.total_s is "1MiB"', "a time such as 30s or 250ms"),
    ("limits:\n  max_body_bytes: 1s\n", "w.yaml:2", 'max_body_bytes is "1s"', "a size such as 64MiB or 1GiB"),
    ("limits:\n  max_buffered_body_bytes: big\n", "w.yaml:2", 'is "big"', "or auto, or a size such as 64MiB or 1GiB"),
    ("timeouts:\n  total_s: .inf\n", "w.yaml:2", "timeouts.total_s is Infinity", "a number above 0"),
    ("timeouts: 5\n", "w.yaml:1", "timeouts is 5", "a mapping with connect_s"),
    ("observe_usage: 1.5\n", "w.yaml:1", "observe_usage is 1.5", "a number from 0 to 1"),
    ("log_level: loud\n", "w.yaml:1", 'log_level is "loud"', "one of debug, error, info, warning"),
    ("workers:\n  -\n", "w.yaml:2", "workers[0] is null", "a mapping with url"),
    ("workers: a:1\n", "w.yaml:1", 'workers is "a:1"', "write a list"),
    ("models: [x]\n", "w.yaml:1", 'models is ["x"]', "write a mapping"),
    ("workers:\n  - kv_events: 'tcp://a:1'\n", "w.yaml:2", "workers[0] has no url", "write url: http://HOST:PORT"),
    ("workers:\n  - url: a:1\n  - ur: b:2\n", "w.yaml:3", "unknown setting workers[1].ur", "workers[1].url"),
    ("- port\n", "w.yaml:1", "the file is", "a mapping with host"),
    ("port: 1\nhost: h\nport: 2\n", "w.yaml:3", "port is given twice", "the first is on line 1"),
    ("port: [1\n", "w.yaml:2", "not YAML", "check indentation"),
    ("a: b: c\n", "w.yaml:1", "not YAML", "check indentation"),
    ("port: 1\nhost: \x01\n", "w.yaml:2", "not YAML", "check"),
    ("host: 2024-13-01\n", "w.yaml:1", "not YAML: month", "in quotes"),
    ("{[a]: 1}\n", "w.yaml:1", "a list or mapping as a key", "a setting's name"),
    ("&a models: &b {x: *b}\n", "w.yaml:1", "nested too deeply", "without anchors"),
    # what types cannot see
    ("workers:\n  - a:1\n  - 'http://'\n", "w.yaml:3", "names no host", "write http://HOST:PORT"),
    ("workers:\n  - localhost\n", "w.yaml:2", "'localhost' has no port", "write http://localhost:8000, vLLM's own"),
    ("workers:\n  - url: ftp://a:1\n", "w.yaml:2", "scheme 'ftp'", "write http://HOST:PORT"),
    ("workers:\n  - url: a:99999\n", "w.yaml:2", "is not a URL", "write http://HOST:PORT"),
    ("workers: [a:1,\n  'http://a:1/']\n", "w.yaml:2", "a:1 is a worker already (workers[0])", "remove one"),
    (
        "workers:\n- url: a:1\n  kv_events:\n    endpoint: a:5557\n",
        "w.yaml:4",
        "not a ZeroMQ address",
        "tcp://HOST:PORT",
    ),
    ("timeouts:\n  total_s: 5\n  connect_s: 6\n", "w.yaml:3", "connect_s (6) is above", "a smaller one"),
    ("port: 9\nadmin_port: 9\n", "w.yaml:2", "port and admin_port are both 9", "two different ports"),
    ("port: 8001\n", "admin_port", "port and admin_port are both 8001", "two different ports"),
    ("host: http://a\n", "w.yaml:1", "host is 'http://a'", "without scheme"),
    ("host: a..b\n", "w.yaml:1", "host is 'a..b'", "write an address"),
    ("host: ''\n", "w.yaml:1", "host is ''", "write an address"),
    ("uds: /no/such/folder/s\n", "w.yaml:1", "the folder of '/no/such/folder/s' does not exist", "existing folder"),
    ('uds: "a\\0b"\n', "w.yaml:1", "is not a path", "write a socket's path"),
    ('uds: "\\ud800"\n', "w.yaml:1", "is not a path", "write a socket's path"),
    (f"uds: {'x' * 120}\n", "w.yaml:1", "the path has 120 bytes", "at most 107"),
    (f"takeover: {'x' * 101}\n", "w.yaml:1", "the path has 101 bytes", "at most 99"),
    ("processes: 2\ntakeover: a.sock\n", "w.yaml:2", "processes asks for several", "leave one of the two out"),
    ("uds: a.sock\ntakeover: a.sock\n", "w.yaml:2", "takeover and uds are the same path", "two different paths"),
    ("trusted_proxies: [10.0.0.1/8]\n", "w.yaml:1", "'10.0.0.1/8' is not a network", "write 10.0.0.0/8"),
    ("trusted_proxies:\n - lan\n", "w.yaml:2", "'lan' is not a network", "write it as in 10.0.0.0/8"),
    ("admin_hosts:\n - a.example:80\n", "w.yaml:2", "is not a host name", "write the name alone"),
    ("cors_origins: [chat.example]\n", "w.yaml:1", "is not an origin", "https://HOST"),
    ("routes: [{name: a, layers: {mark: {}}}]\n", "w.yaml:1", "'mark' is not a layer", "response_header"),
    ("routes: [{name: a, layers: {response_header: {name: x}}}]\n", "w.yaml:1", "missing required field", "layers"),
    ("extra_paths: {v1/x: [POST]}\n", "w.yaml:1", "'v1/x' is not a path", "write /PATH"),
    ("extra_paths: {/v1/*/x: [POST]}\n", "w.yaml:1", "is not a path", "/PATH/*"),
    ("extra_paths: {/sleep: [POST]}\n", "w.yaml:1", "/sleep changes a worker", "remove it"),
    ("extra_paths: {'/fault_tolerance/*': [POST]}\n", "w.yaml:1", "changes a worker", "remove it"),
    ("extra_paths:\n  /x: [post]\n", "w.yaml:2", "'post' is not a method", "GET, HEAD, POST"),
    ("extra_paths:\n  /x: [GET, FETCH]\n", "w.yaml:2", "'FETCH' is not a method", "PATCH, DELETE"),
    ("extra_paths:\n  /x: []\n", "w.yaml:2", "it has no method", "GET, HEAD, POST"),
    (
        "extra_paths: {/x/../sleep: [POST]}\n",
        "w.yaml:1",
        "'/x/../sleep' has '..' in it",
        "write the path that it stands for",
    ),
    ("extra_paths: {/x/%2e%2e/sleep: [POST]}\n", "w.yaml:1", "has '..' in it", "write the path"),
    ("extra_paths: {//x: [POST]}\n", "w.yaml:1", "has '//' in it", "write the path"),
    ("extra_paths: {'/x//*': [POST]}\n", "w.yaml:1", "has '//' in it", "write the path"),
    ("extra_paths: {'/x\\y': [POST]}\n", "w.yaml:1", "in it", "write the path"),
    ("extra_paths: {/x%0ay: [POST]}\n", "w.yaml:1", "in it", "write the path"),
    ("extra_paths: {/ü: [POST]}\n", "w.yaml:1", "is not a path", "write /PATH"),
    ("workers: [a:1/v1]\n", "w.yaml:1", "'a:1/v1' is the address of the API", "drop /v1"),
    ("workers:\n - {url: a:1, api_key: '***'}\n", "w.yaml:2", "stands for a key", "write the key"),
    (
        "limits:\n  max_buffered_body_bytes: 1000\n  max_body_bytes: 2000\n",
        "w.yaml:3",
        "limits.max_body_bytes (2000) is above limits.max_buffered_body_bytes (1000)",
        "write a smaller one",
    ),
    ("tokenizer: nowhere\n", "w.yaml:1", "no tokenizer.json at 'nowhere'", "write its path"),
    ("model_dir: nowhere\n", "w.yaml:1", "no folder 'nowhere'", "tokenizer_config.json"),
    ("model_dir: .\n", "w.yaml:1", "has no tokenizer.json and no tokenizer_config.json", "vllm serve"),
    ("models:\n  m:\n    dir: nowhere\n", "w.yaml:3", "no folder 'nowhere'", "tokenizer_config.json"),
    ("models:\n  m: {chat_template: no.jinja}\n", "w.yaml:2", "no file 'no.jinja'", "Jinja"),
    ("total: 1979-05-27\n", "w.yaml:1", "unknown setting total", "write one of"),
    ("port: 1979-05-27\n", "w.yaml:1", 'port is "1979-05-27"', "a whole number"),
    ('models:\n  "org/name":\n    dir: 5\n', "w.yaml:3", "models.org/name.dir is 5", "write text"),
    ("policy:\n  rule: lpvl\n", "w.yaml:2", "lpvl", "lpwl"),
    ("policy:\n  hold: often\n", "w.yaml:2", 'policy.hold is "often"', "true or false or a mapping"),
    (
        "policy:\n  hold:\n    prefils: 1\n",
        "w.yaml:3",
        "policy.hold.prefils: no such parameter",
        "prefills, kv_space, max_s",
    ),
    ("policy:\n  hold: {max_s: -1}\n", "w.yaml:2", "policy.hold.max_s: -1 will not do", "a number above 0"),
    ("policy:\n  rule: lpwl\n  lanes: {stream_weight: big}\n", "w.yaml:3", "policy.lanes.stream_weight", "at least 0"),
    ("policy:\n  params: {}\n  rule: round_robin\n  seed: -1.5\n", "w.yaml:4", "policy.seed is -1.5", "a whole number"),
]


def at(found, place: str) -> bool:
    return re.fullmatch(re.escape(place) + (r":[1-9]\d*" if ".yaml" in place else ""), found.place) is not None


@pytest.mark.parametrize(("text", "place", "problem", "fix"), YAML, ids=[repr(row[0])[:40] for row in YAML])
def test_a_mistake_in_yaml_names_line_column_problem_and_fix(write, problems, text, place, problem, fix):
    found = problems(file=write("w.yaml", text))
    assert any(at(p, place) and problem in p.problem and fix in p.fix for p in found), list(map(str, found))


ENVIRONMENT = [
    ({"WARMROUTE_PROT": "1"}, "WARMROUTE_PROT", "unknown variable", "did you mean WARMROUTE_PORT?"),
    (
        {"WARMROUTE_TIMEOUTS_CONNECT_S": "1"},
        "WARMROUTE_TIMEOUTS_CONNECT_S",
        "unknown",
        "WARMROUTE_TIMEOUTS__CONNECT_S?",
    ),
    ({"warmroute_port": "1"}, "warmroute_port", "unknown variable", "did you mean WARMROUTE_PORT?"),
    ({"WARMROUTE_QQQQQQQQQQQQQQQQQQQQ": "1"}, "WARMROUTE_QQQQQQQQQQQQQQQQQQQQ", "unknown variable", "unset it"),
    ({"WARMROUTE_PORT": "http"}, "WARMROUTE_PORT", 'port is "http"', "a whole number from 0 to 65535"),
    ({"WARMROUTE_ACCESS_LOG": "maybe"}, "WARMROUTE_ACCESS_LOG", 'access_log is "maybe"', "true or false"),
    ({"WARMROUTE_TIMEOUTS__TOTAL_S": "nan"}, "WARMROUTE_TIMEOUTS__TOTAL_S", "is NaN", "a number above 0"),
    ({"WARMROUTE_TIMEOUTS": "5"}, "WARMROUTE_TIMEOUTS", 'timeouts is "5"', "a mapping with"),
    ({"WARMROUTE_WORKERS": "a:1,ftp://b:2"}, "WARMROUTE_WORKERS", "scheme 'ftp'", "http://HOST:PORT"),
    ({"WARMROUTE_WORKERS": "[1"}, "WARMROUTE_WORKERS", 'workers is "[1"', "write a list"),
    ({"WARMROUTE_CONFIG": "no.yaml"}, "WARMROUTE_CONFIG", "cannot read 'no.yaml'", "readable file"),
]


@pytest.mark.parametrize(("env", "place", "problem", "fix"), ENVIRONMENT, ids=[str(row[0])[:60] for row in ENVIRONMENT])
def test_a_mistake_in_a_variable_names_problem_and_fix(problems, env, place, problem, fix):
    found = problems(env=env)
    assert any(p.place == place and problem in p.problem and fix in p.fix for p in found), list(map(str, found))


FLAGS = [
    ({"port": "x"}, "--port", 'port is "x"', "a whole number"),
    ({"workers": ["a:1", "ftp://b"]}, "--worker", "scheme 'ftp'", "http://HOST:PORT"),
    ({"workers": ["a:1", "a:1"]}, "--worker", "a worker already", "remove one"),
    ({"policy.lanes": "mostly"}, "--lanes", 'policy.lanes is "mostly"', "true or false or a mapping"),
    ({"policy.hold.kv_space": "x"}, "--hold", "policy.hold.kv_space: 'x' will not do", "such as 6.0"),
    ({"policy.rule": "lpvl"}, "--policy", "lpvl", "lpwl"),
    ({"policy.params.zz": "1", "policy.rule": "round_robin"}, "--policy-param", "zz", "takes no parameters"),
    ({"timeouts.conect_s": "1"}, "--set timeouts.conect_s", "unknown setting", "timeouts.connect_s?"),
    ({"timeouts.connect_s": "-1"}, "--set timeouts.connect_s", "timeouts.connect_s is -1", "a number above 0"),
]


@pytest.mark.parametrize(("values", "place", "problem", "fix"), FLAGS, ids=[str(row[0])[:60] for row in FLAGS])
def test_a_mistake_in_a_flag_names_problem_and_fix(problems, values, place, problem, fix):
    found = problems(values)
    assert any(p.place.startswith(place) and problem in p.problem and fix in p.fix for p in found), list(
        map(str, found)
    )


SECRETIVE = [
    ("workers:\n - {url: a:1, api_key: 5371}\n", "workers[0].api_key is ***", "printable ASCII text without spaces"),
    ('workers:\n - {url: a:1, api_key: "5371\\n"}\n', "workers[0].api_key is ***", "printable ASCII"),
    ("workers:\n - {url: a:1, api_key: 5371 x}\n", "workers[0].api_key is ***", "printable ASCII"),
    ("workers:\n - {url: a:1, api_key: ''}\n", "workers[0].api_key is ***", "printable ASCII"),
    ("workers: {url: a:1, api_key: k5371}\n", 'workers is {"url": "a:1", "api_key": "***"}', "write a list"),
    ("workers: [[{url: a:1, api_key: k5371}]]\n", 'workers[0] is [{"url": "a:1", "api_key": "***"}]', "a mapping"),
]


@pytest.mark.parametrize(("text", "problem", "fix"), SECRETIVE, ids=[repr(row[0])[:40] for row in SECRETIVE])
def test_keys_are_not_repeated(write, problems, text, problem, fix):
    (found,) = problems(file=write("w.yaml", text))
    assert problem in found.problem and fix in found.fix
    assert "5371" not in str(found)


def test_a_key_in_text_that_cannot_be_read_is_not_repeated(problems):
    (found,) = problems(env={"WARMROUTE_WORKERS": '[{"url": "a:1", "api_key": "k5371"]'})
    assert found.problem == 'workers is "***"'


def test_keys_stay_out_of_representations():
    config = load({}, {"WARMROUTE_WORKERS": '[{"url": "a:1", "api_key": "k5371"}]'}, None)
    assert config.workers[0].api_key == "k5371"
    assert "k5371" not in repr(config)


def test_all_mistakes_of_all_sources_at_once(write, problems):
    found = problems({"port": "x"}, {"WARMROUTE_HOTS": "h"}, write("w.yaml", "prot: 1\nadmin_port: -1\n"))
    assert [p.place for p in found] == ["WARMROUTE_HOTS", "w.yaml:1:1", "w.yaml:2:1", "--port"]


def test_unreadable_files(tmp_path: Path, problems):
    assert "cannot read" in problems(file=tmp_path / "no.yaml")[0].problem
    assert "cannot read" in problems(file=tmp_path)[0].problem
    (tmp_path / "latin.yaml").write_bytes(b"host: \xe4\n")
    assert "not UTF-8" in problems(file=tmp_path / "latin.yaml")[0].problem
    for name in ("w.json", "w.toml"):
        (tmp_path / name).write_text("{}")
        assert problems(file=tmp_path / name)[0].fix == "write a file named *.yaml"


def test_the_message_holds_every_problem():
    with pytest.raises(ConfigError, match=r"(?s)--host: .*; .*\n--set admin_host|--admin-host: "):
        load({"host": "", "admin_host": ""}, {}, None)


MANY = """\
prot: 8000
port: x
policy:
  rule: lpvl
  params: {alpha: 1}
workers:
  - url: localhost
  - url: ftp://a:1
  - {url: 'http://a:1', wieght: 2}
  - {url: 'http://a:1', labels: {lane: left}}
  - {name: b}
residency:
  relearn: sometimes
routes:
  - {name: BAD NAME, policy: none}
policies:
  batch: {rule: chwbl, params: {load: 2}}
admin_port: 99999
zzz: 1
aaa: 1
"""


def test_all_mistakes_of_a_file_come_at_once_in_the_order_of_its_lines(write, problems):
    found = problems(file=write("w.yaml", MANY))
    lines = [int(one.place.split(":")[1]) for one in found]
    assert lines == sorted(lines)
    assert sorted(set(lines)) == [1, 2, 4, 7, 8, 9, 10, 11, 13, 15, 17, 18, 19, 20]
    said = "\n".join(map(str, found))
    assert "policy 'lpvl': no such policy; write one of" in said and "alpha" not in said
    assert "'localhost' has no port" in said and "has scheme 'ftp'" in said
    assert "a:1 is a worker already" in said and "'left' is no lane" in said and "workers[4] has no url" in said
    assert "write one of passive, piggyback" in said and "no policy is called none" in said
    assert "'load': no such parameter" in said


def test_values_that_depend_on_a_wrong_one_are_not_blamed(write, problems):
    (one,) = problems(file=write("w.yaml", "policy:\n  rule: 5\n  params: {load_factor: 2}\n"))
    assert "policy.rule is 5" in one.problem
    (one,) = problems(file=write("w.yaml", "workers:\n  - url: 5\n  - url: a:1\n"))
    assert "workers[0].url is 5" in one.problem


def test_mistakes_of_the_file_come_before_those_of_the_environment_and_the_flags(write, problems):
    file = write("w.yaml", "workers: [localhost]\nport: x\n")
    found = problems({"log_level": "loud"}, {"WARMROUTE_ADMIN_PORT": "x"}, file)
    assert [one.place for one in found] == ["w.yaml:1:11", "w.yaml:2:1", "WARMROUTE_ADMIN_PORT", "--log-level"]
