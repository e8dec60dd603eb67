"""Processes of a gateway: takeover of its listening sockets, and several processes behind one port.

`listeners.Listeners` holds the listening sockets, which `systemd` may have passed. `takeover` gives them from the
running gateway to a new one. `children` starts and supervises several processes (``warmroute serve --processes N``),
and `shared_memory` is the table they share. Imported by `router.app`, `router.lifecycle` and `router.cli`.
"""
