"""The identity of the prompt in a request body: the length in tokens and the block hashes.

Reading, rendering, tokenising and hashing give the same ids as vLLM would, or none: `PromptIdentifier` returns a
`Prompt` from the best source. These are ids in the body, a local model folder (`backends.vllm.render`), a worker's
/tokenize, and at last the text alone.

Invariants:

- A body that vLLM accepts is never refused here. Odd fields are left to the worker to judge.
- Nothing holds the event loop for more than some milliseconds, and no body takes memory without bound: small bodies
  are decoded whole, of larger ones only the places of fields are found, and very large ones are read in steps. Objects
  are made in two threads, so that a small prompt never waits for a large one.
- Identification has a time limit. A late one is no error: the request is placed by its text or by its size.

A turn of a conversation costs its new text only:

- Tokenizers split text at added tokens first, so at those the ids of the parts, joined, are the ids of the whole. The
  memo keeps the block hashes of prefixes by these segments, and each tokenizer is tested at them.
- Where a template is proved to render a message from it and the first one alone (`backends.vllm.turn_loop`), only new
  messages are decoded and rendered.

Used by `router.gateway`, `router.admin` and `router.app`.
"""
