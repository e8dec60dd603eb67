import json

import pytest

from router.cli.operate.setting_patches import merge_patch
from router.config.model import ModelConfig, RateLimitsConfig, SloConfig, TenantConfig
from router.config.problems import ConfigError


async def test_a_model_is_added_changed_shown_listed_and_removed(run, system):
    assert (await run("models", "set", "org/big", "aliases=chat,gpt-4o", "slo.ttft=250ms"))[:2] == (0, "set org/big\n")
    assert system.control.state.settings.models["org/big"] == ModelConfig(
        aliases=("chat", "gpt-4o"), slo=SloConfig(ttft=0.25)
    )
    assert (await run("models", "set", "org/big", "default=true", "slo.ttft=", "fallback=small"))[0] == 0
    assert system.control.state.settings.models["org/big"] == ModelConfig(
        aliases=("chat", "gpt-4o"), default=True, fallback="small"
    )
    listed = (await run("models", "list"))[1]
    assert all(text in listed for text in ("org/big", "chat, gpt-4o", "small"))
    assert json.loads((await run("models", "list", "-o", "json"))[1])["models"]["org/big"]["default"] is True
    assert (await run("models", "remove", "org/big"))[:2] == (0, "removed org/big\n")
    assert system.control.state.settings.models == {}


@pytest.mark.parametrize("settings", [{"auth": {"api_keys": [f"nightly sha256:{1:064x}"]}}])
async def test_limits_are_named_by_tenant_or_key_as_in_the_metrics(run, system):
    await run("tenants", "set", "batch", "keys=nightly", "max_buffered_body_bytes=64MiB", "trusted=yes")
    tenant = system.control.state.settings.tenants["batch"]
    assert tenant == TenantConfig(keys=("nightly",), max_buffered_body_bytes=67_108_864, trusted=True)
    assert "nightly" in (await run("tenants", "list"))[1]
    assert (await run("limits", "set", "tenant:batch", "requests_per_minute=60"))[:2] == (0, "set tenant:batch\n")
    assert (await run("limits", "set", "key:nightly", "tokens_per_minute=9000", "burst_tokens=100"))[0] == 0
    assert (await run("limits", "set", "key:nightly", "burst_tokens="))[0] == 0
    limits = system.control.state.settings.limits
    assert limits.tenants == {"batch": RateLimitsConfig(requests_per_minute=60)}
    assert limits.keys == {"nightly": RateLimitsConfig(tokens_per_minute=9000)}
    listed = (await run("limits", "list"))[1]
    assert all(text in listed for text in ("tenant:batch", "60", "key:nightly", "9000"))
    both = json.loads((await run("limits", "list", "--json"))[1])
    assert (both["tenants"]["batch"]["requests_per_minute"], list(both["keys"])) == (60, ["nightly"])
    assert (await run("limits", "remove", "key:nightly"))[:2] == (0, "removed key:nightly\n")
    assert (await run("limits", "remove", "tenant:batch"))[0] == (await run("tenants", "remove", "batch"))[0] == 0


async def test_what_is_left_of_limits_is_shown(run, system):
    await run("limits", "set", "tenant:default", "requests_per_minute=60", "max_concurrent_requests=4")
    left = (await run("limits", "left"))[1]
    assert all(text in left for text in ("anybody", "60 of 60", "0 of 4"))
    assert json.loads((await run("limits", "left", "--json"))[1])["accounts"][0]["requests"]["burst"] == 60


async def test_a_dry_run_and_a_stale_tag_change_nothing(run, system):
    limit = ("limits", "set", "tenant:default", "requests_per_minute=5")
    for words in (("models", "set", "big", "default=true"), limit):
        code, out, err = await run(*words, "--dry-run")
        assert (code, words[2].removeprefix("tenant:") in out) == (0, True)
        assert f"add --if-match '{system.control.state.tag}'" in err
        code, _, err = await run(*words, "--if-match", '"x.1"')
        assert (code, "412 Precondition Failed" in err) == (1, True)
    assert system.control.state.version == 1


@pytest.mark.parametrize("command", ["models", "tenants"])
async def test_an_entry_that_is_not_there_is_named(run, command):
    code, _, err = await run(command, "remove", "none")
    assert (code, f"there is no {command[:-1]} 'none'" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("models", "set", "m", "default=maybe"), 'default=maybe: models.m.default is "maybe"; write true or false'),
        (("models", "set", "m", "alias=a"), "alias=a: unknown setting models.m.alias; did you mean models.m.aliases?"),
        (("models", "set", "m", "slo.ttft=-1"), "slo.ttft=-1: models.m.slo.ttft is -1; write a number above 0"),
        (("tenants", "set", "t", "keys.a=b"), 'keys.a=b: tenants.t.keys is {"a": "b"}; write a list'),
        (("limits", "set", "key:k", "requests_per_minute=many"), 'limits.keys.k.requests_per_minute is "many" (text)'),
        (("limits", "set", "key:k", "requests_per_minute"), "'requests_per_minute' is not KEY=VALUE"),
        (("limits", "set", "k", "requests_per_minute=1"), "'k' is not a tenant or key; write tenant:NAME or key:NAME"),
        (("limits", "remove", "key:"), "'key:' is not a tenant or key"),
    ],
)
async def test_a_wrong_setting_is_named_before_the_gateway_is_asked(run, system, words, message):
    code, _, err = await run(*words)
    assert (code, message in err) == (2, True), err
    assert system.control.state.version == 1


def test_values_are_read_by_the_type_of_their_setting():
    patch = merge_patch(("models", "a.b"), ["aliases=x, y", "slo.ttft=2s", "slo.tpot=", "fallback=", "default=off"])
    assert patch == {
        "aliases": ["x", "y"], "slo": {"ttft": 2, "tpot": None}, "fallback": None, "default": False
    }  # fmt: skip
    assert merge_patch(("models", "m"), ['slo={"ttft": "250ms"}'])["slo"] == {"ttft": 0.25}


def test_every_wrong_text_is_named_at_once():
    with pytest.raises(ConfigError) as refused:
        merge_patch(("tenants", "t"), ["trusted=2", "max_queued_requests=-1", "nokey="])
    assert len(refused.value.problems) == 3
