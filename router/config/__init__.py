"""Settings: one typed model, read from flags > environment > file > defaults.

Nouns: `model.Config` and its sections; `load.load`, which reads and checks all sources; `problems.ConfigError`, which
carries every `Problem` found with its place and fix. `sources` holds one reader per kind of source. Imported by
`router.cli`, `router.app` and, for its values, by the rest of `router`.
"""
