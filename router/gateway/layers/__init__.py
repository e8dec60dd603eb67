"""Features around the driver of a request, a folder each. `router.requests.layers` has those of every front.

A feature makes a `router.requests.layer.Layer` for each request that it concerns; the driver calls it at the points of
the request's life. Nothing in `router.gateway.flow` imports from here: to remove a feature, delete its folder and its
line in `router.gateway.features`.
"""
