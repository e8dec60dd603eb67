"""Loaded by the schemathesis command of `test_admin_schema`."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    """Let no request wait for long, because a worker that the test added is never ready. Let a DELETE delete, because
    schemathesis then looks whether the worker is gone. Watch no list: a stream has no end."""
    query = case.query or {}
    wait = str(query.get("wait_s", ""))
    if wait.isascii() and wait.isdecimal() and 1 <= int(wait[:12]) <= 3_600:
        query["wait_s"] = 1
    if case.method.upper() == "DELETE" and query.get("dry_run") in (True, "true"):
        del query["dry_run"]
    if query.get("watch") in (True, "true"):
        del query["watch"]
