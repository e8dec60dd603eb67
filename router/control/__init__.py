"""The desired state of the gateway, and what brings the processes to it.

`DesiredState` is the whole of what operators can change while the gateway runs, as one document with a version. The
admin API's changes lie over the settings of the start (file, environment, flags), and these over discovered workers.
`Control` makes changes one after another; a `Reconciler` brings one process to a state.

Invariants:

- A change is made as a whole or not at all, in every process. It is refused before anything is used, with its reason.
- A process is never between two versions: it moves to the next one in one step of the event loop.
- `If-Match` names a version; a change that names another one than the present fails.
- With `state_dir` the document outlives the process: one file, replaced as a whole. A file that cannot be read does
  not stop the start. It is set aside, so that a newer version's changes are not lost.
- Gateways of a fleet share the admin API's changes: the higher version wins, and of two with the same version the one
  that was written first.

`router.admin`, `router.process` and `router.app` import it.
"""
