"""Names on the wire: gRPC methods, health services, and headers and metadata of GAIE's endpoint picker protocol 1.0.

Source: gateway-api-inference-extension, docs/proposals/004-endpoint-picker-protocol.
"""

from __future__ import annotations

from typing import Final

PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
HEALTH_WATCH: Final = "/grpc.health.v1.Health/Watch"

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
EXTERNAL_PROCESSOR: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
INFERENCE_EXTENSION: Final = "inference-extension"
"""What GAIE's own manifests and llm-d's chart probe."""

DESTINATION: Final = "x-gateway-destination-endpoint"
"""A header, and a key in `LB_NAMESPACE`: ``ip:port``, or a comma list in the order of preference."""
SERVED: Final = "x-gateway-destination-endpoint-served"
"""A key in `LB_NAMESPACE` beside response headers: the endpoint that answered."""
SUBSET: Final = "x-gateway-destination-endpoint-subset"
"""A key in `SUBSET_NAMESPACE`: the endpoints to choose from, as a list or a comma string."""
LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"

MOST_CHUNK_BYTES: Final = 62_000
"""Body bytes in one answer. Gateways read messages of 64 KiB at most; llm-d and Dynamo send 62,000, too."""

OBJECTIVE: Final = "x-llm-d-inference-objective"
FAIRNESS: Final = "x-llm-d-inference-fairness-id"
OLD_OBJECTIVE: Final = "x-gateway-inference-objective"
OLD_FAIRNESS: Final = "x-gateway-inference-fairness-id"
DROP_REASON: Final = "x-llm-d-request-dropped-reason"
SCORES: Final = "x-gateway-destination-endpoint-scores"
"""A key in `LB_NAMESPACE`: a number per endpoint."""
TESTING: Final = "test-epp-endpoint-selection"
"""A header of GAIE's conformance tests: the endpoint to pick."""

PREFILLER: Final = "x-prefiller-host-port"
PULL_SOURCE: Final = "x-kv-cache-source-host-port"
DP_RANK_HOST: Final = "x-data-parallel-host-port"
PREFER: Final = "prefer"
PD_HEADERS: Final = (PREFILLER, "x-encoder-hosts-ports", DP_RANK_HOST, PULL_SOURCE)
"""What a worker's sidecar connects to: never from a client."""
