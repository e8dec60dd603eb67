"""Tokenizer files of the Hugging Face hub.

`fetcher.HubFetcher` runs one child process (`fetch`) at a time, which downloads the tokenizer files of one model into
the cache that all of Hugging Face's programs share. The child bounds size and time, and its libraries do not lie in the
gateway's memory. Nothing that it downloads is code. Imported by `router.tokenization`.
"""
