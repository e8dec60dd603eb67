"""The sender of a request, by the name of its API key: its tenant, its salts and its permissions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from backends.vllm.handover.prefiller_header import NAME as PREFILLER
from router.config.model import Config, LimitsConfig, TenantConfig
from router.errors import ErrorKind, RequestError
from router.limits.caller import CallerLimits
from router.limits.registry import RateLimits
from router.limits.table import RateTable
from router.security.isolation import Isolation, Salts, has_keys

CALLERS_KEPT = 16_384
"""Key names whose callers are kept. A key file that changes for months may name any number."""
CALLERS_LISTED = 1_024
"""Keys whose limits are shown, of those that have limits and no request so far."""
_REPLACED = frozenset({b"traceparent"})
"""Request headers in whose place a traced request gets the gateway's own."""
_HEADERS = {"rank": b"x-data-parallel-rank", "priority": b"x-vllm-priority", "transfer_params": PREFILLER}
"""The request header that each permission allows."""
CLASS_HEADERS = (
    b"x-request-class",
    b"x-llm-d-inference-objective",
    b"x-gateway-inference-objective",
    b"x-dynamo-meta-policy-class",
    b"x-smg-priority",
)
FAIRNESS_HEADERS = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
TTFT_MS_HEADERS = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms", b"x-dynamo-slo-ttft-ms")
TTL_HEADER = b"x-llm-d-inference-ttl"
CLAIMS = frozenset((*CLASS_HEADERS, *FAIRNESS_HEADERS, *TTFT_MS_HEADERS, TTL_HEADER))
"""Request headers that claim a class, a fairness id or a deadline, in the words of several routers."""
VOUCHING = frozenset({b"content-digest", b"repr-digest", b"digest", b"content-md5", b"signature", b"signature-input"})
"""Request headers with a digest or signature of the body. They are wrong once the gateway has changed the body."""


class TenantUsage:
    """The current use of one tenant, against its quotas (None: no quota)."""

    __slots__ = (
        "_max_body_bytes",
        "_max_queued",
        "bodies_refused",
        "body_bytes",
        "classes",
        "name",
        "queued",
        "queued_refused",
        "weight",
    )

    def __init__(self, name: str, tenant: TenantConfig) -> None:
        self.name = name
        self.adopt(tenant)
        self.queued = 0
        """Requests that wait for a worker."""
        self.body_bytes = 0
        """Bytes of request bodies in memory."""
        self.queued_refused = 0
        self.bodies_refused = 0

    def adopt(self, tenant: TenantConfig) -> None:
        """Use other quotas for the requests that follow."""
        self._max_queued = tenant.max_queued_requests
        self._max_body_bytes = tenant.max_buffered_body_bytes
        self.classes, self.weight = tenant.classes, tenant.weight

    @property
    def may_queue(self) -> bool:
        """Whether another request may wait."""
        return self._max_queued is None or self.queued < self._max_queued

    def refuse_to_queue(self) -> RequestError:
        """Return the error for a request that would have to wait."""
        self.queued_refused += 1
        message = f"tenant {self.name} has max_queued_requests ({self._max_queued}) requests waiting for a worker"
        return RequestError(ErrorKind.TENANT_REQUESTS_QUEUED, message)

    def check(self, size_bytes: int, arrived_bytes: int = 0) -> None:
        """Refuse `size_bytes` more of a body of which `arrived_bytes` are here, if the tenant's quota is too small.

        Raises:
            RequestError: the body can never fit (413), or does not fit now (503).
        """
        limit_bytes = self._max_body_bytes
        if limit_bytes is None or self.body_bytes + size_bytes <= limit_bytes:
            return
        self.bodies_refused += 1
        quota = f"max_buffered_body_bytes ({limit_bytes}) of tenant {self.name}"
        if arrived_bytes + size_bytes > limit_bytes:
            raise RequestError(ErrorKind.BODY_TOO_LARGE, f"the body is larger than {quota}")
        message = f"the request bodies in progress take up {quota}; try again later"
        raise RequestError(ErrorKind.TENANT_BODY_BYTES, message)

    def statistics(self) -> dict[str, int]:
        """Return waiting requests, bytes of bodies in memory, and refusals by quota."""
        return {
            "queued": self.queued,
            "body_bytes": self.body_bytes,
            "queued_refused": self.queued_refused,
            "bodies_refused": self.bodies_refused,
        }


class Caller:
    """One API key name, or everybody if the port has no keys.

    `may` contains transfer_params, priority or rank. `salts` is None if nothing is isolated, and `limits` if nothing
    is limited. `trusted`: it belongs to a trusted tenant. `withheld` names the request headers that are not sent to
    workers; for a body with a salt, `withheld_salted` does.
    """

    __slots__ = ("account", "limits", "may", "name", "salts", "tenant", "trusted", "withheld", "withheld_salted")

    def __init__(
        self,
        name: str | None,
        may: frozenset[str],
        account: TenantUsage | None,
        salts: Salts | None,
        limits: CallerLimits | None = None,
        *,
        trusted: bool = False,
        withheld: frozenset[bytes] = frozenset(),
    ) -> None:
        self.name = name
        self.may = may
        self.account = account
        self.tenant = account.name if account is not None else None
        self.salts = salts
        self.limits = limits
        self.trusted = trusted
        self.withheld = withheld.union(header for what, header in _HEADERS.items() if what not in may)
        self.withheld_salted = self.withheld | VOUCHING


class Callers:
    """Callers by key name, made at their first request, because a key file may bring new names at any time."""

    def __init__(self, config: Config) -> None:
        self._allowed = frozenset(config.auth.allow)
        self._auth = config.auth
        self._accounts: dict[str, TenantUsage] = {}
        self._callers: dict[str, Caller] = {}
        self._use_tenants(config.tenants)
        self._limits = RateLimits(config.limits)
        self._open = not has_keys(config.auth)
        self._withheld = _REPLACED if config.tracing.endpoint is not None else frozenset()
        if config.classes:
            self._withheld |= CLAIMS  # the gateway obeys those of callers that may send them
        if config.handover.connector is not None:
            self._withheld |= {PREFILLER}  # the gateway obeys it, and writes its own
        self.anybody = Caller(None, self._allowed, None, None, self._anybodys_limits(), withheld=self._withheld)
        """The caller without a key, if none is needed."""

    def adopt(self, tenants: Mapping[str, TenantConfig], limits: LimitsConfig) -> None:
        """Use other tenants and limits from the next request on. Tenants and limits that stay keep their use."""
        self._use_tenants(tenants)
        self._limits.adopt(limits)
        self._callers.clear()
        self.anybody.limits = self._anybodys_limits()

    def _use_tenants(self, tenants: Mapping[str, TenantConfig]) -> None:
        before = self._accounts
        self._accounts = {name: before.get(name) or TenantUsage(name, tenant) for name, tenant in tenants.items()}
        for name, tenant in tenants.items():
            self._accounts[name].adopt(tenant)
        self._isolation = Isolation(self._auth, tenants)
        self._tenants = tenants_of(tenants)
        self._trusted = {name for name, tenant in tenants.items() if tenant.trusted}

    def share_limits(self, table: RateTable) -> None:
        """Keep the fill of all limits in `table`, which other processes share. Call it before the first request."""
        self._limits.share(table)
        self._callers.clear()
        self.anybody.limits = self._anybodys_limits()

    def _anybodys_limits(self) -> CallerLimits | None:
        return self._limits.of(None, None) if self._open else None

    def of(self, key_name: str) -> Caller:
        """Return the caller with the key of this name, which must be a valid key."""
        caller = self._callers.get(key_name)
        if caller is None:
            if len(self._callers) >= CALLERS_KEPT:
                self._callers.clear()
            tenant = self._tenants.get(key_name)
            trusted = tenant in self._trusted
            may = ALL if trusted else self._allowed
            account = self._accounts[tenant] if tenant is not None else None
            limits = self._limits.of(key_name, tenant)
            salts = self._isolation.salts(key_name)
            caller = self._callers[key_name] = Caller(
                key_name, may, account, salts, limits, trusted=trusted, withheld=self._withheld
            )
        return caller

    def limits(self, key_names: Iterable[str] | None, now_s: float) -> list[dict[str, Any]]:
        """Return the fill of every limit; `key_names` are the valid keys, None if the port needs none."""
        callers: list[tuple[str | None, str | None]] = [(None, tenant) for tenant in self._accounts]
        if key_names is None:
            callers.append((None, None))
        else:
            callers += [(name, self._tenants.get(name)) for name in islice(key_names, CALLERS_LISTED)]
        return self._limits.statistics(callers, now_s)

    def statistics(self) -> dict[str, Any]:
        return {name: account.statistics() for name, account in self._accounts.items()}


ALL = frozenset({"transfer_params", "priority", "rank"})
"""The permissions of a trusted tenant."""


def tenants_of(tenants: Mapping[str, TenantConfig]) -> dict[str, str]:
    return {key: name for name, tenant in tenants.items() for key in tenant.keys}
