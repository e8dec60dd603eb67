"""A profile from the kernels of a model's layers, timed with torch alone.

`shape` reads a config.json, `operations` lists what one rank computes in a step, `compose` adds the times of operations
up to steps, and `torch_timer` times an operation. Only the last imports torch.
"""
