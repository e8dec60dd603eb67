"""Build an environment in which vLLM runs without a GPU: one recipe per vLLM version, and the command that follows it.

`python backends/clock/environment/build.py DIR --recipe vllm-0.33` needs the standard library only.
"""
