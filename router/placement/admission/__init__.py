"""Admission: who goes first, who waits and who is refused at once when the fleet is full. Pure: `now_s` is an argument.

A request goes to a worker while the work ahead of it there is less than the headroom (`room`). Otherwise it waits in
the gateway, where it can still be ordered and refused; the queue inside a worker stays short. Work is in seconds: the
prefill of the uncached tokens and the request's share of decode steps (`cost`).

`classes.RequestClass` is one class of the settings, and `Claim` what a request may claim of it. `queue.AdmissionQueue`
holds the waiting requests of one model. Order between classes: those that have used less than their share first, in
the order of the settings; then the others; then classes without a share. Order within a class: tenants with credit
first, and by deadline or arrival. Credit is counted as in DLPM (arXiv 2501.14312) and lifted as in VTC (OSDI 2024):
no credit is saved while nothing waits (`credit`). `prediction` refuses a request at arrival that would wait too long.

`admission.Admission` is what a driver asks. Imported by `router.requests` and `loadtest.sim`.
"""
