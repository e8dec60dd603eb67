"""``warmroute calibrate``: an engine profile of this GPU and this model.

`recordings` makes one from timestamps of vLLM on a real GPU.
"""
