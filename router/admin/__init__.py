"""The admin port: REST API under ``/admin/v1``, health and metrics at the root.

`app.build_admin` makes the Starlette application of a `system.AdminView` (the running gateway, as a protocol). A
resource is one module in `fleet`, `settings` or `observe`: its JSON documents, its operations with what they do, and
how the answers of several processes become one. `table.OPERATIONS` lists the operations; routes, the OpenAPI document
(`openapi`) and the reference page come from it. `guard` refuses browser pages and callers without a token, and
`audit_log` records changes. `watch` turns lists into streams of events. `planner` sizes the fleet in a process of its
own. `http` serves the port.
Imported by `router.app`, `router.process` and `router.cli`.
"""
