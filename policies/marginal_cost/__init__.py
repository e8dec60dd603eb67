"""The default rule: the least cost in seconds.

`rule` adds the prices of `terms` and chooses, and `ties` says which of the candidates that cost about the same is
used. `policies.registry` imports the rule.
"""
