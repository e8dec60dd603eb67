"""Settings for those who come from llm-d's or GAIE's picker: its `EndpointPickerConfig`, translated.

`picker_config` reads the file, `counterparts` is the table of plugins, `rules` finds the policy of a profile, and
`translate` puts the settings and the notes together. It does not emulate: each item without a counterpart is named.
Imported by `router.cli` only.
"""
