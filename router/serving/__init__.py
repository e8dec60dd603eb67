"""The life of a gateway process around `router.app.System`: where its listening sockets come from, and where they go.

`life.Life` starts one, waits for its end and drains it. Sockets are bound (`listeners.Listeners`), passed by systemd
(`systemd`), or taken over from the gateway that runs (`predecessor.Predecessor`), which answers by
`successors.Successors`; `messages` is what the two say to each other. `admin_server` serves the admin port. Imported by
`router.app`.
"""
