"""Load, benches and the demo: the commands that show what the router does.

`workload` makes requests, `drive` sends them over real HTTP and times the answers, `report` prints and writes,
`demo` is ``warmroute demo``, `bench` compares the gateway's cost with other proxies, `sim` runs the core in virtual
time and `lab` judges routing rules with it. Nothing imports this package.
"""
