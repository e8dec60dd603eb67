"""Limits by key and tenant: requests at once, requests per minute, tokens per minute. Pure.

- `bucket` has the arithmetic of a token bucket. `table.RateTable` keeps the buckets and the counts of all accounts in
  one block of memory, which several processes can share.
- `host_use.HostUse` is what this host has used, for other hosts, and what they have used, taken from the buckets here.
- `account.RateAccount` is one tenant or one key with its limits; `account.CallerLimits` are the accounts of one caller.
- `caller.Charge` is what one admitted request has taken, until it is settled at its end.
- `registry.RateLimits` makes the accounts from the settings.

Imported by `router.security`, which finds the caller of a request, by `router.gateway`, which admits and settles, and
by `router.replicas`, which shares the use.
"""
