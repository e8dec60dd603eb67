"""KV handover between two workers: one computes the prompt, the other receives its KV cache and writes the answer.

- `connector.Connector` describes one KV connector of vLLM as data, and says which ``kv_transfer_params`` each request
  carries. They are in `nixl`, `mooncake`, `offloading_peer` and `shared_store`; `connectors` finds one by name.
- `request_body` makes the bodies of both requests from the client's, `prefill_answer` reads the first answer, and
  `parameters` checks what a worker hands over before another worker gets it.
- `prefiller_header` is llm-d's header that names the prefill worker.

Pure: values in, values out, without sockets and without a clock. Fields and times are those of vLLM 0.32 and 0.33.
"""
