"""How a scripted picker behaves. The defaults pass every case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Manners:
    # what a pick has
    picks_without_body: bool = True
    destination_header: bool = True
    destination_metadata: bool = True
    metadata_differs: bool = False
    metadata_is_list: bool = False
    outside_pool: bool = False
    clears_route_cache: bool = True
    repeats_in_list: bool = False
    bare_ipv6: bool = False
    one_endpoint: bool = False
    one_port: bool = False
    sticky: bool = True
    value_only: bool = False
    appends: bool = False
    # bodies in full duplex
    answers_early: bool = False
    body_first: bool = False
    plain_body_answers: bool = False
    spoils_bytes: bool = False
    chunk_bytes: int = 62_000
    ends_twice: bool = False
    drops_small_pieces: bool = False
    ends_on_body_only: bool = False
    ignores_trailers: bool = False
    answers_second_end: bool = False
    decodes_pieces: bool = False
    picks_on_body: bool = False
    wrong_length: bool = False
    needs_length: bool = False
    # other modes
    echoes_buffered: bool = False
    echoes_streamed: bool = False
    needs_body: bool = False
    needs_protocol_config: bool = False
    needs_send_at_once: bool = False
    answers_observed: bool = False
    rejects_unknown_fields: bool = False
    rejects_attributes: bool = False
    rejects_capitals: bool = False
    # subset
    reads_subset: bool = True
    reads_text_subset: bool = True
    trims: bool = True
    reads_bare_addresses: bool = True
    unknown_is_pool: bool = False
    empty_is_pool: bool = False
    absent_is_empty: bool = False
    subset_beats_readiness: bool = False
    subset_without_body: bool = True
    subset_of_fallbacks: bool = True
    any_namespace: bool = False
    metadata_reversed: bool = False
    # availability
    aborts_without_endpoints: bool = False
    sees_not_ready: bool = True
    sees_ready_again: bool = True
    sees_terminating: bool = True
    sees_active_ports: bool = True
    sees_added: bool = True
    sees_removed: bool = True
    delay_s: float = 0.0
    # shedding
    sheds: bool = True
    sheds_all: bool = False
    drop_reason: str = "rejected-saturated"
    retry_after: str = "1"
    error_type: str = "application/json"
    forgets_cancelled: bool = False
    fifo: bool = False
    reads_old_names: bool = True
    honours_objectives: bool = True
    # responses
    changes_status: bool = False
    follows_served: bool = True
    holds_events: bool = False
    answers_response_trailers: bool = True
    counts_errors: bool = True
    decodes_responses: bool = False
    ends_with_error: bool = False
    breaks_on_response_alone: bool = False
    reads_usage: bool = True
    # streams
    most_streams: int = 1_000_000
    leaks_cancelled: bool = False
    most_message_bytes: int = -1
    one_at_a_time: bool = False
    drains: bool = True
    most_undecided: int = 1_000_000
    # health
    liveness_needs_sync: bool = False
    readiness_needs_sync: bool = True
    serves_processor_name: bool = True
    serves_manifest_names: bool = True
    serves_unknown_names: bool = False
    watches: bool = True
    # clients' headers, and extensions
    removes_pd_headers: bool = True
    obeys_testing_header: bool = False
    sets_prefiller: bool = True
    prefills_short_prompts: bool = False
    rank_elsewhere: bool = False
    knows_adapters: bool = True
    follows_weights: bool = True
    reads_prefer: bool = True
    scores_are_numbers: bool = True
