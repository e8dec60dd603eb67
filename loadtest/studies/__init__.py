"""Studies of policies in virtual time, each run by hand as ``python -m loadtest.studies.NAME``.

`groups`: the peers' workload. `halves`: parameters chosen on half of the workloads. `policies`: rules at fixed rates.
`throttled`: how soon a slower worker is noticed.
"""
