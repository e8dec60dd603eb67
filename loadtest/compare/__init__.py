"""``python -m loadtest compare``: routers and rules in front of the same workers, with one plan over HTTP.

`workers` starts the fleet and empties its caches, `contenders` starts a router, and `player` sends the
plan with the player of `loadtest.load`. `modelled`
plays the same plan in virtual time for Warmroute's rules. `run` is the whole command, `settings` and `cases` its flags,
`findings` and `report` its tables.
"""
