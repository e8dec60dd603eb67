"""Sources that say which workers there are.

`registration.Registration` describes one worker, whatever source names it. A source, one module each, follows its
origin and hands its whole current answer to a `report.SourceReport`, or the reason why it has none now. A source that
fails keeps its last answer. `router.discovery` runs the sources; nothing here imports `router`.
"""
