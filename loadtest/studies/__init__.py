"""Studies of policies in virtual time, each run by hand as ``python -m loadtest.studies.NAME``.

`groups`: the peers' workload. `split_half`: parameters chosen on half of the workloads, judged on the other half.
`policies`: rules at fixed rates. `leave_one_out`: the default rule without each of its parts. `same_help`: other rules
with hold and lanes around them. Both play `short.workloads`. `throttled`: how soon the gateway notices a slower worker.
`handover` and `pulls`: what both bring when decided by cost. `role_flips`: what automatic changes of roles bring.
"""
