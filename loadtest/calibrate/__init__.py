"""``warmroute calibrate``: an engine profile of this GPU and this model.

`readings` are measured steps and the fit to them, and `worker` measures a running worker.
"""
