"""``python -m loadtest fit-profile``: an engine profile's step costs from a recording of vLLM on a real GPU.

`recording` reads the timestamps, `replay` plays the arrivals through the engine model in virtual time, `fit` finds the
costs by least squares, and `command` prints them with their error on requests that the fit has not read.
"""
