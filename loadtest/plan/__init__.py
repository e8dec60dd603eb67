"""``warmroute plan``: the cheapest fleet that meets a service level on the user's own traffic, found by simulation.

`traffic.Traffic` is a trace, a generator or a decision log (`log_trace`) as pieces of trace files: the busiest window,
the peak hour around it, and a sample of every other hour. `trials.Trials` simulates a fleet on one of them, seed by
seed, until `loadtest.report.verdict` decides. `search` finds the least count of workers that holds. `sizing` asks for
it once per candidate, rule and split of roles, and asks what limits the fleet and how the answer moves. `report` shows
the result. The simulation is that of `loadtest.lab`.
"""
