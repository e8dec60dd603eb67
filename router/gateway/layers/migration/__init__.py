"""Migration: an answer whose worker dies goes on at another worker, token for token.

A stream that can be continued is asked for its token ids, the prompt's P and the answer's G. After the death, another
worker gets P + G as its prompt, and what it adds goes to the client as the rest of the same stream.

Invariants:

- The client never sees a token twice, nor misses one: G ends at the last event that carried text (`TrackedStream`).
- No byte of a second worker goes to the client before that worker has returned P + G as its prompt
  (`LaterLeg`). A worker that ignores the ids would begin the answer again.
- A request that cannot be continued exactly is not asked for ids (`refusal`), and ends as it does without migration.

`layer.Migration` is the feature; the flow calls it through `Rewrite.resumption`, once, after a death. The two ways to
send ids are those of vLLM 0.33: ``prompt`` of completions, and ``kv_transfer_params.prompt_token_ids`` of chats.
"""
