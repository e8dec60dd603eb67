"""Find the identity of the prompt in a request body: the length in tokens and the block hashes.

`intake` reads the few fields of a body that matter, by `json_spans` if it is large and step by step (`large_json`) if
it is very large; `multipart` reads the model of a form. `body_bounds` decides which bodies are decoded and where,
`preparing` turns the fields into work, `threads` runs it and `identification_deadline` limits its time. `long_text`
tokenises long texts in little memory.

`identity` returns a `Prompt` from the best source: a local model folder (`sources`; `backends.vllm.render` renders and
tokenises), a worker's /tokenize (`remote_tokenizer`), or the text alone (`text`). `memo` remembers tokenised prefixes,
so a turn of a conversation costs its new text only. `segmenter` decides where text may be divided, and
`segmentation_check` tests that for a tokenizer. Used by `router.gateway`, `router.admin` and `router.app`.
"""
