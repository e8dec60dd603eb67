"""The codes of the admin API's own errors: the statuses that they come with, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CodeMeaning(NamedTuple):
    """One code of a problem document."""

    statuses: tuple[int, ...]
    meaning: str


CODES: Mapping[str, CodeMeaning] = {
    "invalid_json": CodeMeaning((400,), "the body is not JSON, or is missing"),
    "repeated_parameter": CodeMeaning((400,), "a query parameter comes twice"),
    "unknown_parameter": CodeMeaning((400,), "the operation has no such query parameter"),
    "unauthorized": CodeMeaning((401,), "the request does not bring a token of the port"),
    "console_not_open": CodeMeaning(
        (403,), "without admin tokens, the console is for clients of the gateway's host alone"
    ),
    "address_not_allowed": CodeMeaning((403,), "`discovery.registration_networks` does not have the worker's address"),
    "host_not_allowed": CodeMeaning((403,), "Host is not one of the port's names (`admin_hosts`)"),
    "operation_not_allowed": CodeMeaning((403,), "`worker_operations` does not have the operation"),
    "origin_not_allowed": CodeMeaning((403,), "Origin is another site"),
    "role_not_allowed": CodeMeaning((403,), "the token's role does not allow the operation"),
    "not_found": CodeMeaning((404,), "there is no worker, entry, route or revision with that name"),
    "not_acceptable": CodeMeaning((406,), "Accept does not allow the answer's media type"),
    "no_decision_log": CodeMeaning((409,), "`decision_log.path` is not set, or nothing was recorded in the last hour"),
    "planner_running": CodeMeaning((409,), "another plan is made; ask again when it is done"),
    "overtaken": CodeMeaning((409,), "another gateway of the fleet changed the state first; the change was undone"),
    "undrained": CodeMeaning((409,), "somebody undrained the worker while the call waited for its drain"),
    "what_if_running": CodeMeaning((409,), "another what-if runs; ask again when it is over"),
    "worker_busy": CodeMeaning((409,), "requests are still at the worker after `wait_s`"),
    "worker_exists": CodeMeaning((409,), "the worker is in the fleet already"),
    "worker_not_ready": CodeMeaning((409,), "the worker is not ready after `wait_s`"),
    "cursor_expired": CodeMeaning((410,), "what the cursor names is gone; start at the first page"),
    "state_changed": CodeMeaning((412,), "the desired state is not the one that If-Match names"),
    "body_too_large": CodeMeaning((413,), "the body is too large"),
    "unsupported_media_type": CodeMeaning((415,), "the body is not declared as JSON"),
    "invalid_value": CodeMeaning((422,), "a field or parameter has a value that is not valid"),
    "too_many_probes": CodeMeaning((429,), "too many routing probes are in progress; none is queued"),
    "too_many_watchers": CodeMeaning((429,), "too many streams are open"),
    "not_applied": CodeMeaning((500,), "a process cannot be brought to the new state; nothing has changed"),
    "condition_not_supported": CodeMeaning((501,), "the request has a condition that the operation does not check"),
    "handed_over": CodeMeaning((503,), "another process has taken over; ask again on a new connection"),
    "no_process": CodeMeaning((503,), "a process did not answer"),
    "not_ready": CodeMeaning((503,), "no worker is ready, or the gateway is starting or stopping"),
    "probe_timeout": CodeMeaning((504,), "the answer to a routing probe takes longer than a second"),
    "not_saved": CodeMeaning((507,), "the change cannot be saved in `state_dir`; it was undone"),
    "too_many_registrations": CodeMeaning((507,), "the most workers are registered already"),
}
"""By code. Errors that the public port has too, such as those of explained requests, keep that port's codes."""
