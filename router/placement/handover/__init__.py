"""Requests that two workers serve: KV handover from prefill to decode, pulls of prefixes, and what links carry.

The planner prices each pair. Imports the rest of `placement`; only `Dispatcher` imports it.
"""
