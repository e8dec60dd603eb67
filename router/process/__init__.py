"""The life cycle of a gateway: start, takeover of its listening sockets, drain, and several processes behind one port.

`lifecycle.Lifecycle` starts the gateway, waits for its end and drains it. `listeners.Listeners` holds the listening
sockets, which `systemd` may have passed. `takeover` gives them from the running gateway to a new one. `children` starts
and supervises several processes (``warmroute serve --processes N``), and `shared_memory` is the table they share.
Imported by `router.app` and `router.cli`.
"""
