"""The accounts of all callers, made from the settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from router.config.model import LimitsConfig, RateLimitsConfig
from router.limits.account import RateAccount
from router.limits.caller import CallerLimits
from router.limits.table import SLOTS, RateTable, local_table

DEFAULT = "default"
"""The entry of `limits.tenants` for every tenant, and every key without a tenant, that has no limits of its own."""
ANYBODY = "anybody"


class RateLimits:
    """Accounts by name, made when they are first needed. Their number is bounded, because a key file may change."""

    def __init__(self, config: LimitsConfig, table: RateTable | None = None) -> None:
        self._table = table
        self._accounts: dict[str, RateAccount] = {}
        self._earlier: dict[str, RateAccount] = {}
        """Accounts under earlier limits. Their counts go on if they are limited again."""
        self.adopt(config)

    def adopt(self, config: LimitsConfig) -> None:
        """Use other limits of tenants and keys. The levels of all buckets stay, within their new sizes."""
        self._tenants = config.tenants
        self._keys = config.keys
        self._default = config.tenants.get(DEFAULT)
        self._on = bool(config.tenants or config.keys)
        self._earlier = {**self._earlier, **self._accounts} if len(self._earlier) < SLOTS else self._accounts
        self._accounts = {}

    def share(self, table: RateTable) -> None:
        """Use a table that other processes share. Call it before the first request."""
        self._table = table
        self._accounts.clear()
        self._earlier.clear()

    def of(self, key_name: str | None, tenant: str | None) -> CallerLimits | None:
        accounts = [self._account(name, config) for name, config in self._named(key_name, tenant)]
        return CallerLimits(tuple(accounts), self._shared()) if accounts else None

    def _named(self, key_name: str | None, tenant: str | None) -> Iterable[tuple[str, RateLimitsConfig]]:
        if not self._on:
            return
        own = self._keys.get(key_name) if key_name is not None else None
        if own is not None:
            yield f"key:{key_name}", own
        if tenant is not None:
            limits = self._tenants.get(tenant, self._default)
            if limits is not None:
                yield f"tenant:{tenant}", limits
        elif own is None and self._default is not None:
            yield ANYBODY if key_name is None else f"key:{key_name}", self._default

    def _account(self, name: str, config: RateLimitsConfig) -> RateAccount:
        account = self._accounts.get(name)
        if account is None:
            while len(self._accounts) >= SLOTS:
                del self._accounts[next(iter(self._accounts))]
            account = self._accounts[name] = self._made(name, config)
        return account

    def _made(self, name: str, config: RateLimitsConfig) -> RateAccount:
        account = self._earlier.pop(name, None)
        if account is None:
            return RateAccount(name, config, self._shared())
        account.adopt(config)
        return account

    def _shared(self) -> RateTable:
        if self._table is None:
            self._table = local_table()
        return self._table

    def statistics(self, callers: Iterable[tuple[str | None, str | None]], now_s: float) -> list[dict[str, Any]]:
        """Return the fill of each account of these callers, given as key name and tenant, by the account's name."""
        if not self._on:
            return []
        for key_name, tenant in callers:
            for name, config in self._named(key_name, tenant):
                self._account(name, config)
        table = self._shared()
        with table:
            return [self._accounts[name].statistics(now_s) for name in sorted(self._accounts)]
