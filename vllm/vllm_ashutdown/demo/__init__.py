"""The demonstration: a real vLLM with a real model, stopped in order, on a laptop.

`vllm_ashutdown.demo.checkpoint` makes the model that it serves; nothing is
downloaded while it runs.
"""
