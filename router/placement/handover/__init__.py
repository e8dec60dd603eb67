"""Requests that two workers serve: KV handover from prefill to decode, pulls of prefixes, and what links carry.

`planner` makes a `plan` of legs. Imports the rest of `placement`; only `core` imports it.
"""
