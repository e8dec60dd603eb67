"""vLLM's dialect: what it makes of a request, what it reports, and how it is asked.

Rendering gives the text and token ids that vLLM would run: message forms are normalised in vLLM's order of fields, the
template runs as Hugging Face runs it, and the tokenizer files are read as transformers 5 reads them. Chats, Responses
and Messages become the same chat body that vLLM makes of them. The reference is the behaviour of vLLM 0.33, observed
at its render endpoint; older versions are tested from 0.23 on. What cannot be rendered for certain is `Unrenderable`,
never a guess.

A worker may be broken or hostile. Every call to one has a limit of bytes and of time (`control`), every answer is
parsed in bounded steps, and an unknown event or an odd field never loses the rest of its batch. Every failure is a
`ProbeError` that an operator can act on.

Imported by `router` and `backends.simulated`; does not import `router`.
"""
