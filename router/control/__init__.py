"""The desired state of the gateway, and what brings the processes to it.

`desired_state.DesiredState` is the whole of what operators can change while the gateway runs, with a version. Its
sources are the settings that the gateway was started with (file, environment, flags) and the admin API: `merge` puts
the API's changes over the settings, and `differences` says how two states differ. Workers that sources name lie under
the settings (`discovered`). `control.Control` makes changes one after another. `reconciler.Reconciler` brings one
process to a state, as a whole or not at all. `role_planner.RolePlanner` changes roles of workers with the load.

`router.admin`, `router.process` and `router.app` import it.
"""
