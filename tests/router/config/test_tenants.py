"""Mistakes in tenants, limits, isolation and models are named, and what may still become right is a warning."""

import pytest

from router.config.model import to_builtins
from router.security.isolation import mode_of
from router.security.keys import KeyEntry, digest_of, new_key
from router.security.settings import warnings
from router.settings import load

ALICE, BOB = (KeyEntry(name, digest_of(new_key().encode())).line for name in ("alice", "bob"))
KEYS = f"auth:\n  api_keys: ['{ALICE}', '{BOB}']\n"

MISTAKES = [
    ("tenants: {red: {keys: [alice]}}", ["tenants is set, but the port has no API keys"]),
    ("auth: {isolate_cache: key}", ["auth.isolate_cache is key, but the port has no API keys"]),
    ("auth: {isolate_cache: group}", ["auth.isolate_cache is group, but the port has no API keys"]),
    (f"{KEYS}  isolation_secret: abc\n  isolate_cache: off\n", ["so it has no effect"]),
    (f"{KEYS}tenants: {{red: {{}}}}", ["tenants.red has no keys"]),
    (f"{KEYS}tenants: {{red: {{keys: [alice]}}, blue: {{keys: [bob, alice]}}}}", ["alice is in tenants red and blue"]),
    (f"{KEYS}tenants: {{red: {{keys: [carol]}}}}", ["auth.api_keys has no key named 'carol'"]),
    (f"{KEYS}tenants: {{'a b': {{keys: [alice]}}}}", ["'a b' is not a tenant's name"]),
    (
        f"{KEYS}tenants: {{red: {{keys: [alice], cache_group: g}}}}",
        ["cache_group is set, but auth.isolate_cache is key"],
    ),
    ("limits: {tenants: {red: {requests_per_minute: 5}}}", ["tenants has no tenant named 'red'"]),
    ("limits: {keys: {alice: {requests_per_minute: 5}}}", ["limits.keys is set, but the port has no API keys"]),
    (f"{KEYS}limits: {{keys: {{carol: {{requests_per_minute: 5}}}}}}", ["auth.api_keys has no key named 'carol'"]),
    (f"{KEYS}tenants: {{default: {{keys: [alice]}}}}", ["a tenant is called default"]),
    (
        "limits: {tenants: {default: {burst_requests: 5}}}",
        ["limits.tenants.default.burst_requests is set, and no requests_per_minute"],
    ),
    (
        f"{KEYS}limits: {{keys: {{alice: {{burst_tokens: 5, requests_per_minute: 5}}}}}}",
        ["limits.keys.alice.burst_tokens is set, and no tokens_per_minute"],
    ),
    ("models: {a: {aliases: [b]}, b: {}}", ["'b' is a model itself"]),
    ("models: {a: {aliases: [a]}}", ["'a' is a model itself"]),
    ("models: {a: {aliases: [x]}, b: {aliases: [x]}}", ["'x' is an alias of a and of b"]),
    ("models: {a: {aliases: ['']}}", ["an alias is empty"]),
    ("models: {a: {default: true}, b: {default: true}}", ["models.b.default is true, and so is models.a.default"]),
    ("models: {a: {aliases: [x], fallback: b}, b: {fallback: x}}", ["'x' is an alias of a"]),
    (
        "models: {a: {on_request: ['', a, 'x*y']}}",
        [
            "'' is neither a name nor the start of one",
            "'a' is the model itself",
            "'x*y' is neither a name nor the start of one",
        ],
    ),
    ("models: {a: {on_request: [x-*]}, b: {on_request: [x-*]}}", ["'x-*' is resolved by a, and by b"]),
    ("models: {a: {aliases: [x], on_request: [x]}}", ["'x' is an alias of a"]),
    ("models: {a: {fallback: a}}", ["fallbacks lead in a circle: a -> a"]),
    (
        "models: {a: {fallback: b}, b: {fallback: a}}",
        ["fallbacks lead in a circle: a -> b -> a", "fallbacks lead in a circle: b -> a -> b"],
    ),
    (f"{KEYS}  isolation_secret: '***'\n", ["stands for one that is not shown"]),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_in_tenants_limits_or_models_names_place_and_fix(write, problems, text, said):
    found = problems(file=write("w.yaml", text))
    assert len(found) == len(said), found
    for problem, part in zip(found, said, strict=True):
        assert part in str(problem)
        assert problem.place.startswith("w.yaml:")


def test_a_secret_may_wait_for_keys(write):
    config = load({}, {"WARMROUTE_AUTH__ISOLATION_SECRET": "made-by-a-deployment"}, write("w.yaml", "port: 0\n"))
    assert mode_of(config.auth) == "off"


def test_valid_tenants_load(write):
    text = (
        f"{KEYS}  isolate_cache: group\n  isolation_secret: of-the-fleet\n"
        "tenants:\n  red: {keys: [alice], cache_group: g, max_queued_requests: 0, trusted: true}\n"
        "  blue: {keys: [bob], cache_group: g, max_buffered_body_bytes: 1000}\n"
    )
    config = load({}, {}, write("w.yaml", text))
    assert config.tenants["red"].keys == ("alice",)
    assert list(warnings(config)) == []
    assert to_builtins(config)["auth"]["isolation_secret"] == "***"


@pytest.mark.parametrize("spelling", ["off", "false", "'off'"])
def test_isolate_cache_off_needs_no_quotes(write, spelling):
    assert load({}, {}, write("w.yaml", f"{KEYS}  isolate_cache: {spelling}\n")).auth.isolate_cache == "off"


def test_keys_that_the_file_does_not_have_yet_are_a_warning(write, tmp_path):
    (tmp_path / "keys").write_text(f"{ALICE}\n")
    text = f"auth: {{api_keys_file: {tmp_path / 'keys'}}}\ntenants: {{red: {{keys: [alice, carol, dave]}}}}\n"
    (said,) = warnings(load({}, {}, write("w.yaml", text)))
    assert said == "tenants.red names keys that do not exist yet: carol, dave"


def test_tenants_from_the_environment():
    config = load({}, {"WARMROUTE_AUTH__API_KEYS": ALICE, "WARMROUTE_TENANTS": '{"red": {"keys": ["alice"]}}'}, None)
    assert config.tenants["red"].keys == ("alice",)


def test_limits_of_keys_that_the_file_does_not_have_yet_are_a_warning(write):
    keys = write("keys", f"{ALICE}\n")
    text = f"auth: {{api_keys_file: {keys}}}\nlimits: {{keys: {{bob: {{requests_per_minute: 1}}}}}}"
    (said,) = warnings(load({}, {}, write("w.yaml", text)))
    assert said == "limits.keys names keys that do not exist yet: bob"


def test_a_fallback_may_be_a_model_without_settings(write):
    config = load({}, {}, write("w.yaml", "models: {a: {fallback: b, aliases: [x, y], default: true}}"))
    assert (config.models["a"].fallback, config.models["a"].aliases) == ("b", ("x", "y"))
