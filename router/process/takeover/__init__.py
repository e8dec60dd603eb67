"""Takeover: a new process takes the listening sockets of the running gateway, so that no connection is refused.

`client.TakeoverClient` is the new process's side, `server.TakeoverServer` that of the running gateway, and `messages`
is the protocol between the two.
"""
