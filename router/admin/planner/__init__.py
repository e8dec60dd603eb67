"""The size of the fleet for the last hour's traffic: `warmroute plan` on the decision log, in a process of its own.

`run` makes one plan at a time for an admin port, `child` is what its process does first (it takes a low priority
and its limits), and `documents` has the JSON. The operations are in `router.admin.observe.planner`. The gateway imports
nothing of the simulator.
"""
