"""``python -m loadtest.peers.choices``: do our versions of other routers' rules choose as these do?

`sequence` draws prompts and when they are held and released, `drive` sends them one by one through a real router and
notes which worker got each, `replay` asks our rule in the same state, `command` is the whole run.
"""
