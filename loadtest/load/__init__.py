"""``warmroute load``: load on any OpenAI endpoint, sent by the client in `http`.

`command` is the command line, and `orders` makes the `order` of a run from it. `datasets` has its sessions, `arrivals`
the times, `prompts` the bodies. `drive` starts processes, in each of which a `player` sends its share by a `pacer`'s
clock. `seen` sends one request and classifies its end; `records` defines the measures. `tally`, `steady` and `results`
judge a run, `output` shows it, `search` makes many and `endurance` long ones. `run` is the whole command.
"""
