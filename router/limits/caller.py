"""The accounts of one caller, and what one of its requests has taken from them."""

from __future__ import annotations

from router.errors import RequestError
from router.limits.account import RateAccount, Refusal
from router.limits.table import RateTable


class Charge:
    """The charge of one admitted request, open until `settle` is called. `tokens` is the estimate that was taken."""

    __slots__ = ("_limits", "_open", "tokens")

    def __init__(self, limits: CallerLimits, tokens: int) -> None:
        self._limits = limits
        self._open = True
        self.tokens = tokens

    def settle(self, used_tokens: int, now_s: float, *, served: bool) -> None:
        """End the charge: `used_tokens` replace the estimate, or all comes back if no worker has `served` the request.

        Only the first call counts.
        """
        if self._open:
            self._open = False
            self._limits.settle(self.tokens, used_tokens, now_s, served=served)


class CallerLimits:
    """The limits of one caller: of its key, of its tenant, or of both. `refused`: its last request was refused."""

    __slots__ = ("_accounts", "_table", "refused")

    def __init__(self, accounts: tuple[RateAccount, ...], table: RateTable) -> None:
        self._accounts = accounts
        self._table = table
        self.refused = False

    def admit(self, tokens: int, now_s: float) -> Charge | RequestError:
        """Charge a request of an estimated `tokens` to all accounts, or to none and return the error."""
        lock = self._table.lock
        lock.acquire()
        try:
            refusal = self._check(tokens, now_s)
            if refusal is None:
                for account in self._accounts:
                    account.take(tokens, now_s)
        finally:
            lock.release()
        self.refused = refusal is not None
        return Charge(self, tokens) if refusal is None else refusal

    def peek(self, now_s: float) -> RequestError | None:
        """Return the error that any request would get now. Nothing is charged."""
        lock = self._table.lock
        lock.acquire()
        try:
            return self._check(0, now_s)
        finally:
            lock.release()

    def settle(self, charged_tokens: int, used_tokens: int, now_s: float, *, served: bool) -> None:
        """Correct the charge of a request in all accounts."""
        lock = self._table.lock
        lock.acquire()
        try:
            for account in self._accounts:
                account.settle(charged_tokens, used_tokens, now_s, served=served)
        finally:
            lock.release()

    def _check(self, tokens: int, now_s: float) -> RequestError | None:
        """Return the refusal that lasts longest: when it ends, the request passes all limits."""
        worst: tuple[Refusal, RateAccount] | None = None
        for account in self._accounts:
            refusal = account.check(tokens, now_s)
            if refusal is not None and (worst is None or refusal.wait_s > worst[0].wait_s):
                worst = refusal, account
        if worst is None:
            return None
        refusal, account = worst
        account.refused[refusal.limit] += 1
        return refusal.error

    def lines(self) -> bytes:
        """Return the x-ratelimit header lines after the last check or charge.

        Of a key and its tenant, the one with less left counts, for requests and for tokens.
        """
        if len(self._accounts) == 1:
            requests, tokens = self._accounts[0].lines()
            return requests + tokens
        by_requests = [each for each in self._accounts if each.requests is not None]
        by_tokens = [each for each in self._accounts if each.tokens is not None]
        lines = min(by_requests, key=_requests_left).lines()[0] if by_requests else b""
        return lines + min(by_tokens, key=_tokens_left).lines()[1] if by_tokens else lines


def _requests_left(account: RateAccount) -> float:
    return account.requests_left


def _tokens_left(account: RateAccount) -> float:
    return account.tokens_left
