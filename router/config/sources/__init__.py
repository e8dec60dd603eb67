"""Readers of settings: each turns one kind of source into a `tree.Located` tree that remembers places.

`yaml_file`, `environment` and `flags`. Imported by `router.config.load` only.
"""
