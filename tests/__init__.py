"""The tests, and the harness that the benchmarks share with them."""

import signal

# What a shell begins in the background ignores Ctrl-C, and so would whatever is begun
# from here: much of it is about what that does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
