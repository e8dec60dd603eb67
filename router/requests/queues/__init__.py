"""Requests that wait in the gateway.

- `no_worker.NoWorkerQueue`: requests for which no worker is ready. All are offered again when the fleet changes.
- `hold.HoldQueue`: requests that the policy holds for a better moment at a certain worker.
- `lost_workers`: requests whose worker was ejected or removed before it answered.
- `gone_workers`: requests whose worker refuses connections and sends nothing.
- `quarantine` limits the damage of a query of death.
- `request.WaitingRequest`: what all of them, and the quarantine, see of a request.
"""
