import itertools
import subprocess
import sys

import pytest

from router.config.model import AuthConfig, TenantConfig
from router.security.isolation import Isolation, mode_of

KEYED = {"api_keys": ("alice sha256:" + "0" * 64,)}
TENANTS = {
    "red": TenantConfig(keys=("r1", "r2"), cache_group="shared"),
    "green": TenantConfig(keys=("g",), cache_group="shared"),
    "blue": TenantConfig(keys=("b1", "b2")),
    "shared": TenantConfig(keys=("s",)),
}


def isolation(mode=None, secret=None):
    return Isolation(AuthConfig(**KEYED, isolate_cache=mode, isolation_secret=secret), TENANTS)


def plain(isolated, key):
    return isolated.salts(key).plain


def test_isolation_defaults_to_key_with_keys():
    assert mode_of(AuthConfig()) == "off"
    assert mode_of(AuthConfig(**KEYED)) == "key"
    assert mode_of(AuthConfig(api_keys_file="keys")) == "key"
    assert mode_of(AuthConfig(**KEYED, isolate_cache="off")) == "off"
    assert Isolation(AuthConfig(), {}).salts("alice") is None
    assert isolation("off").salts("alice") is None


def test_isolation_by_key_separates_names():
    isolated = isolation("key")
    salts = [plain(isolated, name) for name in ("r1", "r2", "g", "b1", "nobody's", "shared")]
    assert len(set(salts)) == len(salts)


def test_isolation_by_group_follows_cache_group():
    isolated = isolation("group")
    assert plain(isolated, "r1") == plain(isolated, "r2") == plain(isolated, "g")
    assert plain(isolated, "b1") == plain(isolated, "b2")
    groups = [plain(isolated, name) for name in ("r1", "b1", "s", "blue", "shared", "loner", "other")]
    assert len(set(groups)) == len(groups)


def test_a_clients_own_salt_splits_its_group_further():
    salts = isolation("key").salts("alice")
    made = [salts.of(own) for own in (None, "a", "b", "ab", " a", "ü", "\ud800", "x" * 1_000, "@/\\\0")]
    assert len(set(made)) == len(made)
    assert salts.of("a") == salts.of("a")
    assert salts.of(None) == salts.plain


def test_no_group_can_reach_anothers_salt():
    isolated = isolation("key")
    made = [isolated.salts(key).of(own) for key, own in itertools.product(("a", "ab", "b"), (None, "b", "a", "bb"))]
    assert len(set(made)) == len(made)
    assert isolated.salts("a").of(isolated.salts("b").plain) != isolated.salts("b").plain


def test_every_salt_is_valid_for_vllm():
    for own in (None, "@/\\\0", "x" * 10_000):
        salt = isolation().salts("alice").of(own)
        assert 0 < len(salt) <= 128
        assert set(salt) <= set("0123456789abcdef")


def test_a_secret_changes_all_salts():
    salts = [plain(isolation("key", secret), "alice") for secret in (None, "one-secret", "another-secret")]
    assert len(set(salts)) == 3


def test_another_process_makes_the_same_salts():
    program = (
        "from router.config.model import AuthConfig\nfrom router.security.isolation import Isolation\n"
        f"print(Isolation(AuthConfig(api_keys={KEYED['api_keys']!r}), {{}}).salts('alice').of('own'))"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == isolation().salts("alice").of("own")


@pytest.mark.parametrize(
    ("own", "salt"),
    [
        (None, "ae9628c47c07e7db19af7a09b5e9bb035aaf6e2c033060d7"),
        ("own", "1e544c4eaa1d43818f0d92b439e71533d5445aa0411fd304"),
    ],
)
def test_salts_are_stable_over_versions(own, salt):
    """A change here makes every cached prefix of every isolated fleet useless once: make none without a reason."""
    assert isolation().salts("alice").of(own) == salt
