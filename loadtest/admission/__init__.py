"""Queues beside each other under the loads on which admission is judged: bursts, mixed classes, tenants, overload.

`loads` draws the requests, `contest` plays them through one queue in virtual time, `bars` compares with what must be
reached, and `command` prints the table.
"""
