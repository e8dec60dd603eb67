"""Settings: one typed model, read from flags > environment > file > defaults.

Nouns: `model.Config` and its sections; `load.load`, which reads all sources and runs the checks that it gets;
`problems.ConfigError`, which carries every `Problem` with its place and fix. `problems.Check` is the form of a check;
`router.settings` collects the checks of all packages. `sources` holds one reader per kind of source. This package
imports no other package of `router`.
"""
