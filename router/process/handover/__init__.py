"""Handover: a new process takes the listening sockets of the running gateway, so that no connection is refused.

`client.HandoverClient` is the new process's side, `server.HandoverServer` that of the running gateway, and `messages`
is the protocol between the two.
"""
