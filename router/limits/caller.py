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

    def raise_to(self, used_tokens: int, now_s: float) -> bool:
        """Charge at least `used_tokens` from now on. Return whether a debt is now larger than its bucket."""
        more = used_tokens - self.tokens
        if more <= 0 or not self._open:
            return False
        self.tokens = used_tokens
        return self._limits.take_more(more, now_s)

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
        table = self._table
        with table:
            refusal = self._check(tokens, now_s)
            if refusal is None:
                for account in self._accounts:
                    account.take(tokens)
        self.refused = refusal is not None
        return Charge(self, tokens) if refusal is None else refusal

    def peek(self, now_s: float) -> RequestError | None:
        """Return the error that any request would get now. Nothing is charged."""
        table = self._table
        with table:
            return self._check(0, now_s)

    @property
    def by_tokens(self) -> bool:
        return any(account.by_tokens for account in self._accounts)

    def take_more(self, tokens: int, now_s: float) -> bool:
        """Charge tokens to a request in progress. Return whether a debt is now larger than its bucket."""
        table, owes = self._table, False
        with table:
            for account in self._accounts:
                owes = account.take_more(tokens, now_s) or owes
        return owes

    def settle(self, charged_tokens: int, used_tokens: int, now_s: float, *, served: bool) -> None:
        table = self._table
        with table:
            for account in self._accounts:
                account.settle(charged_tokens, used_tokens, now_s, served=served)

    def _check(self, tokens: int, now_s: float) -> RequestError | None:
        """Return the refusal that lasts longest: when it ends, the request passes all limits."""
        worst: Refusal | None = None
        for account in self._accounts:
            refusal = account.check(tokens, now_s)
            if refusal is not None and (worst is None or refusal.wait_s > worst.wait_s):
                worst, refusing = refusal, account
        if worst is None:
            return None
        refusing.refused[worst.limit] += 1
        return worst.error

    def lines(self) -> bytes:
        """Return the x-ratelimit header lines after the last check or charge.

        Of a key and its tenant, the one with less left counts, for requests and for tokens.
        """
        first, *others = self._accounts
        by_requests = by_tokens = first
        for account in others:
            if account.requests_left < by_requests.requests_left:
                by_requests = account
            if account.tokens_left < by_tokens.tokens_left:
                by_tokens = account
        lines = by_requests.lines()
        return lines[0] + (lines if by_tokens is by_requests else by_tokens.lines())[1]
