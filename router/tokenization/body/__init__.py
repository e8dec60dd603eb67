"""Reads request bodies once: the few fields that routing needs, at a bounded cost per element.

`intake` is the way in; it imports nothing of the tokenizers.
"""
