"""Requests that wait in the gateway.

- `no_worker.NoWorkerQueue`: no worker is ready; all are offered again when the fleet changes.
- `hold.HoldQueue`: the policy holds them for a better moment, at the worker they wait for.
- `lost_workers`: requests whose worker was ejected or removed before it answered.
"""
