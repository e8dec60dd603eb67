"""Routing policies: pure rules that rank the candidates of a request.

`view` has the types that a policy receives and returns; `registry` builds a policy by name. The package imports
nothing else of this project; `router` and `loadtest` import it.
"""
