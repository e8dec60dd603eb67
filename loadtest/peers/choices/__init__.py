"""``python -m loadtest.peers.choices``: do our versions of other routers' rules choose the same workers?

`sequence` draws prompts and decides when they are held and released. `drive` sends them one by one through a real
router and notes the worker of each. `replay` applies our rule to the same state. `command` is the whole run.
"""
