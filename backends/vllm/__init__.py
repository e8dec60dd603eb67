"""vLLM's dialect.

`render` turns a request body into the text and token ids that vLLM would run (`conversation` normalises messages,
`templates` compiles chat templates, `tokenizer` reads the model folder). `events` decodes KV events; `probe` and
`metrics` read a worker's reports about itself. Imported by `router` and by `backends.simulated`; does not import
`router`.
"""
