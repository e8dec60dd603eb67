"""The admin port: REST API under ``/admin/v1``, health and metrics at the root.

`app.build_admin` makes the Starlette application of a `system.AdminSystem` (the running gateway, as a protocol).
`table.OPERATIONS` declares every operation once: routes, the OpenAPI document (`openapi`) and the reference page
(`reference`) come from it. `documents` are the JSON shapes. `guard` refuses browser pages and callers without a token,
and `audit_log` records changes. `watch` turns lists into streams of events. `server` and `connection` serve the port.
Imported by `router.app`, `router.process` and `router.cli`.
"""
