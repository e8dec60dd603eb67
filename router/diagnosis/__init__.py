"""What hurts, from the gateway's own measurements.

`measurements` observes requests and load reports; `measured` holds what it has seen, of one process or of several.
`diagnose` turns that into a `Diagnosis` with the help of `checks`, one for each pressure point. `split_plan` is the
model of the workers' roles. Imported by `router.admin`, `router.process` and `router.app`.
"""
