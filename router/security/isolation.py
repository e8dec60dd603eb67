"""Cache salts that keep callers from sharing cached prefixes (`auth.isolate_cache`). Pure.

vLLM hashes `cache_salt` into the first block of a prompt, so two requests share cached blocks only if they have the
same salt. A salt is a keyed digest of the caller's group and of the salt in the client's own body. It depends on the
settings alone, so every gateway of a fleet makes the same one, also after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b, sha256

from router.config.model import AuthConfig, TenantConfig

DIGEST_BYTES = 24
"""A salt has 192 bits, which are 48 characters in a body. vLLM accepts up to 128 characters, without ``@ / \\``."""
_DOMAIN = b"warmroute cache_salt"
"""The key if no secret is set. It only separates these digests from others."""
_OWN_SALT = b"\x01"


class Salts:
    __slots__ = ("_state", "plain")

    def __init__(self, key: bytes, kind: str, name: str) -> None:
        group = f"{kind}\x00{name}".encode("utf-8", "surrogatepass")
        self._state = blake2b(len(group).to_bytes(4, "big") + group, digest_size=DIGEST_BYTES, key=key)
        self.plain = self._state.hexdigest()
        """The salt of bodies without their own."""

    def of(self, own: str | None) -> str:
        """Return the salt of a body whose own salt is `own`."""
        if own is None:
            return self.plain
        state = self._state.copy()
        state.update(_OWN_SALT + own.encode("utf-8", "surrogatepass"))
        return state.hexdigest()


class Isolation:
    """The group of each key. `off`: all callers share everything."""

    def __init__(self, auth: AuthConfig, tenants: Mapping[str, TenantConfig]) -> None:
        self._mode = mode_of(auth)
        secret = auth.isolation_secret
        self._key = sha256(_DOMAIN + b"\x00" + secret.encode()).digest() if secret is not None else _DOMAIN
        self._tenants = {key: (name, tenant) for name, tenant in tenants.items() for key in tenant.keys}

    @property
    def off(self) -> bool:
        """Whether no request gets a salt."""
        return self._mode == "off"

    def salts(self, key_name: str) -> Salts | None:
        """Return the salts of the key's group, or None if nothing is isolated."""
        if self.off:
            return None
        name, tenant = self._tenants.get(key_name, ("", None))
        if self._mode == "key" or tenant is None:
            return Salts(self._key, "key", key_name)
        if tenant.cache_group is None:
            return Salts(self._key, "tenant", name)
        return Salts(self._key, "group", tenant.cache_group)


def mode_of(auth: AuthConfig) -> str:
    """Return `auth.isolate_cache` or its default."""
    if auth.isolate_cache is not None:
        return auth.isolate_cache
    return "key" if has_keys(auth) else "off"


def has_keys(auth: AuthConfig) -> bool:
    return bool(auth.api_keys) or auth.api_keys_file is not None
