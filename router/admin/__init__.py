"""The admin port: REST API under ``/admin/v1``, health and metrics at the root.

`app.build_admin` makes the Starlette application of a `system.AdminSystem` (the running gateway, as a protocol).
`table.OPERATIONS` declares every operation once: the routes, the OpenAPI document (`openapi`) and the reference page
(`reference`) are made from it. `documents` are the JSON shapes, `guard` keeps browsers and oversized bodies out.
Imported by `router.app` and `router.cli`.
"""
