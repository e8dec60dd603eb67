"""From ids to the next token, and from tokens to text, as a model and vLLM's detokeniser do it.

`TokenSampler` draws tokens; `SeededDraws` makes them a function of the ids before them. `AnswerText` holds back
incomplete characters and what may become a stop string. For `backends.simulated` and `backends.clock`.
"""
