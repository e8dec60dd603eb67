"""From a request body to the identity of its prompt: how many tokens, and which block hashes.

`intake` reads the few fields of a body that matter, by `spans` where it is large and step by
step (`skim`) where it is very large, `multipart` the model of a form.
`bounds` says which bodies are decoded and where, `preparing` what a decoded one comes to, `threads` are the threads for
that and `deadline` how long it may take; `pieces` tokenises long texts in little memory. `identity` answers with a
`Prompt`, from the best source at hand: a local model folder (`sources`; rendering and tokenising is
`backends.vllm.render`), a worker's /tokenize (`remote`), or the text alone (`text`). `memo` remembers tokenised
prefixes so that a turn of a conversation costs its new text; `cuts` says where text may be cut and `proof` whether that
holds for a tokenizer. Used by `router.gateway`, `router.admin` and `router.app`.
"""
