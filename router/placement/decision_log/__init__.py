"""The decision log: everything that policies see, and what they chose, in lines that can be replayed.

`recorder.Recorder` writes the `lines`, and `replay.LogReplay` reads them and decides again. A log has hashes of prompts
and no text. Imported by `router.placement.named_policies`, `router.cli` and the composition root.
"""
