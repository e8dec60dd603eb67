"""What differs between the pools of one picker: the port, the workers, and the objects of Kubernetes about them.

`worker_pool.WorkerPool` says which workers are in a pool. `pool_objects.PoolObjects` has the priorities of objectives
and the `rewrites` of models, from the settings and from `kubernetes`; `saturation` says when low priorities are
refused. `settings` checks `picker.pools`. The rest of `router.picker` may import from here, and nothing here imports
it.
"""
