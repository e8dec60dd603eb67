"""What Warmroute has for each plugin that is no scorer: a table, with the plugin's type as the key.

Types as registered in llm-d-router (cmd/epp/runner) in 2026, and those of its predecessors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.picker.translate.notes import Became

_ROLE = "the role of a worker says this (`role`, or the pod's label llm-d.ai/role)"
_PARSED = "the API's paths are read in any case"
_PROBED = "workers are probed and their /metrics are read in any case"
_APPROXIMATE = "a worker without KV events gets a model of its cache, of the size that it reports"
_OWN_TOKENS = "prompts are rendered and tokenised in the gateway, with the workers' own files where these are found"
_OWN_LEDGER = "the gateway counts the load that it has placed, from the decision on"
_NO_PREDICTOR = "prefill and decode speeds are learned in the gateway; there is no predictor beside it"
_NO_SLO = "service levels change no decision; `routes[].slo` measures them"
_NO_PRIORITIES = (
    "`classes` order requests that wait, by class and tenant, once they are written; `limits.tenants` bounds the use"
)
_SESSIONS = "the rule session_affinity reads X-Session-Id; other rules follow the cached prefix"

COUNTERPARTS: Final[Mapping[str, tuple[Became, str]]] = {
    # profile handlers
    "single-profile-handler": (Became.IMPLIED, "one policy decides"),
    "single-profile": (Became.IMPLIED, "one policy decides"),
    "data-parallel-profile-handler": (Became.IMPLIED, "each data-parallel rank of a worker is a candidate of its own"),
    "header-profile-handler": (Became.NOTHING, "write `routes` that match the header, each with a policy"),
    "disagg-headers-handler": (Became.IMPLIED, "a pick of two workers carries the header in any case"),
    "prefill-header-handler": (Became.IMPLIED, "a pick of two workers carries the header in any case"),
    "always-disagg-multimodal-decider": (Became.NOTHING, "there is no separate encode stage"),
    # filters
    "decode-filter": (Became.IMPLIED, _ROLE),
    "prefill-filter": (Became.IMPLIED, _ROLE),
    "encode-filter": (Became.NOTHING, "there is no separate encode stage; leave such workers out"),
    "label-selector-filter": (Became.NOTHING, "narrow the source of workers instead (`discovery.sources`)"),
    "by-label": (Became.NOTHING, "narrow the source of workers instead (`discovery.sources`)"),
    "by-label-selector": (Became.NOTHING, "narrow the source of workers instead (`discovery.sources`)"),
    "header-based-testing-filter": (Became.NOTHING, "a client cannot choose its worker"),
    "utilization-filter": (Became.NOTHING, "no worker is left out for its load; limits.max_requests_per_worker can"),
    "slo-headroom-tier-filter": (Became.NOTHING, _NO_SLO),
    "session-affinity-filter": (Became.NOTHING, _SESSIONS),
    "topology-affinity-filter": (Became.NOTHING, "topology changes no decision"),
    "endpoint-attribute-filter": (Became.NOTHING, "a rule of your own can read labels and loads"),
    # pickers
    "max-score-picker": (Became.IMPLIED, "the best worker wins; ties go to the least recently used, not at random"),
    "max-score": (Became.IMPLIED, "the best worker wins; ties go to the least recently used, not at random"),
    "weighted-random-picker": (Became.NEAREST, "the best worker wins, not a random one by score"),
    "load-aware-picker": (Became.NEAREST, "the best worker wins, by the policy's cost alone"),
    # what the picker knows of prompts and caches
    "approx-prefix-cache-producer": (Became.IMPLIED, _APPROXIMATE),
    "token-producer": (Became.IMPLIED, _OWN_TOKENS),
    "tokenizer": (Became.IMPLIED, _OWN_TOKENS),
    "inflight-load-producer": (Became.IMPLIED, _OWN_LEDGER),
    "session-id-producer": (Became.IMPLIED, "a session is X-Session-Id, or session_id in the body"),
    "predicted-latency-producer": (Became.IMPLIED, _NO_PREDICTOR),
    "mm-embeddings-cache-producer": (Became.NOTHING, "there is no view of caches of image embeddings"),
    "burst-prefix-cache-producer": (
        Became.NEAREST,
        "a request's blocks count from its placement on, so a burst follows",
    ),
    # where workers and loads come from
    "metrics-data-source": (Became.IMPLIED, _PROBED),
    "core-metrics-extractor": (Became.IMPLIED, _PROBED),
    "models-data-source": (Became.IMPLIED, _PROBED),
    "models-data-extractor": (Became.IMPLIED, _PROBED),
    "models-responder": (Became.NOTHING, "one worker answers GET /v1/models; only `warmroute serve` lists all"),
    "endpoint-notification-source": (Became.IMPLIED, "a source of workers brings each change"),
    "k8s-notification-source": (Became.IMPLIED, "a source of workers brings each change"),
    "destination-endpoint-served-verifier": (Became.IMPLIED, "who served is learned with `picker.learn`"),
    "request-attribute-reporter": (Became.NOTHING, "tokens and times of requests are in the metrics"),
    "multicluster-file-discovery": (Became.NOTHING, "a worker is one vLLM server, not another cluster"),
    # parsers
    "openai-parser": (Became.IMPLIED, _PARSED),
    "anthropic-parser": (Became.IMPLIED, _PARSED),
    "vllmhttp-parser": (Became.IMPLIED, _PARSED),
    "passthrough-parser": (Became.IMPLIED, "a path that is not known is placed by load"),
    "vllmgrpc-parser": (Became.NOTHING, "requests in gRPC are not read"),
    "sglanghttp-parser": (Became.NOTHING, "SGLang's own paths are placed by load"),
    "vertexai-parser": (Became.NOTHING, "requests in gRPC are not read"),
    # flow control
    "global-strict-fairness-policy": (Became.NOTHING, _NO_PRIORITIES),
    "round-robin-fairness-policy": (Became.NOTHING, _NO_PRIORITIES),
    "program-aware-fairness": (Became.NOTHING, _NO_PRIORITIES),
    "fcfs-ordering-policy": (Became.IMPLIED, "requests that wait go on in the order in which they came"),
    "edf-ordering-policy": (Became.NOTHING, _NO_PRIORITIES),
    "slo-deadline-ordering-policy": (Became.NOTHING, _NO_PRIORITIES),
    "static-usage-limit-policy": (Became.NOTHING, _NO_PRIORITIES),
    "priority-holdback-policy": (Became.NOTHING, _NO_PRIORITIES),
    "soft-reflective-ceiling-policy": (Became.NOTHING, _NO_PRIORITIES),
    "probabilistic-admitter": (Became.NOTHING, "no request is refused by chance"),
    "latency-slo-admitter": (Became.NOTHING, _NO_SLO),
    "agent-identity": (Became.NOTHING, _SESSIONS),
    "thunder-agent": (Became.NOTHING, "programmes of several requests have no quota of their own"),
}
UNKNOWN: Final = (Became.NOTHING, "not known here")
