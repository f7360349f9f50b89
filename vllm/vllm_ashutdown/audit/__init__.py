"""One stop of any server, looked at from outside: nothing in here asks the server.

A server is started, given streams, stopped in some way, and then the machine is asked
what became of it: which processes are left, which files, whose streams ended how. The
command ``vllm-ashutdown audit`` and the demonstration are made of it.
"""
