"""Workloads: what is asked, when, and which text is shared; drawn from seeds. Used by all of `loadtest`.

For virtual time: `source.Source`, a trace file (`trace`, `schemas`) or a generator (`generators`), of which a seed
draws a `plan.Plan`: sessions of calls whose prompts are `text.Text`s, pieces that stand for words. For real workers:
`conversations.Conversation`, made of real sentences.
"""
