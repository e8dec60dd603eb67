"""Workers in Kubernetes: the endpoints of a service, pods by their labels, or the pods of an InferencePool.

`api.ApiServer` calls the API server. `reflector.Reflector` follows one collection of objects by list and watch.
`objects` reads workers out of objects, and `source.KubernetesSource` joins these. There is no client library beneath:
those that were tried lose deletions after an expired watch, or repeat calls without a pause.
"""
