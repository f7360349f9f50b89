"""What can be known about a server's stops before there is one.

Of vLLM and what is laid over it, of the settings, of what surrounds them, of the
machine: each part gives findings. None starts a server, and none changes anything.
"""
