"""What hurts, from the gateway's own measurements.

`measurements` observes requests and load reports; `measured` holds what it has seen, of one process or of several.
`diagnose` turns that into a `Diagnosis` with the help of `findings`, one module for each pressure point, and
`split_plan` into a `FleetPlan` of the workers' roles. Imported by `router.control`, `router.admin`, `router.process`
and `router.app`.
"""
