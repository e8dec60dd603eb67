"""Messages and method paths of ext_proc v3 and grpc.health.v1, without gRPC.

`ext_proc_pb2` and `health_pb2` are generated from the `.proto` files beside them by ``make protocol``. `names` has the
paths of the methods, and the headers and metadata keys of the Gateway API Inference Extension (GAIE). Imported by
everything in `router.picker`.
"""
