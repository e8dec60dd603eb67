"""Tokenizers in this process: their files, the memo of segments, and chains of block hashes over their ids."""
