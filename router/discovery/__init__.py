"""Workers that sources name: the sources of the settings, run side by side, feed the desired state.

`discovery.Discovery` runs them in the one process that decides the state, and puts their answers together. `workers`
makes settings of what a source says about a worker. `router.admin`, `router.process` and `router.app` import it.
"""
