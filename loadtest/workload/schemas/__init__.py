"""Traces' schemas, one module each: what a row holds, and the sessions that rows make. `schema.Schema` is the noun.

`known.recognise` tells a schema by the fields of a row; a new one is added to the list there.
"""
