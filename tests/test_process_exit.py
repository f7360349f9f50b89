"""A process of ours leaves fast, and touches nothing of its parent's on the way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from tests.programs import ROOT


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        # This checkout's package, also where another one is installed.
        env=os.environ | {"PYTHONPATH": str(ROOT / "vllm")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_forked_child_leaves_the_parents_exit_hooks_alone():
    done = run("""
        import atexit, multiprocessing, os, tempfile
        from vllm_ashutdown.process_exit import fast_exit

        folder = tempfile.TemporaryDirectory()
        atexit.register(lambda: print("hook in", os.getpid() == parent))
        parent = os.getpid()
        child = multiprocessing.get_context("fork").Process(target=fast_exit, args=(3,))
        child.start()
        child.join()
        print(child.exitcode, os.path.isdir(folder.name))
    """)
    assert done.stdout.split("\n")[:2] == ["3 True", "hook in True"], done


def test_the_exit_runs_the_hooks_and_flushes_and_keeps_the_code():
    done = run("""
        import atexit, sys
        from vllm_ashutdown.process_exit import fast_exit

        class Slow:
            def __del__(self):
                print("torn down")  # the interpreter's own way would get here

        kept = Slow()
        atexit.register(print, "hook")
        sys.stdout.write("unflushed ")
        fast_exit(7)
    """)
    assert (done.returncode, done.stdout) == (7, "unflushed hook\n")


def test_switched_off_it_returns():
    done = run("""
        import os
        os.environ["VLLM_ASHUTDOWN_FAST_EXIT"] = "0"
        from vllm_ashutdown.process_exit import fast_exit
        fast_exit(7)
        print("the slow way")
    """)
    assert (done.returncode, done.stdout) == (0, "the slow way\n")


def test_a_program_that_calls_the_command_goes_on_after_it():
    done = run("""
        from vllm_ashutdown.adapters.serve import make_cmd
        make_cmd(lambda args: print("served"))(None)
        print("went on")
    """)
    assert done.stdout == "served\nwent on\n"


def test_torch_leaves_its_operators_as_they_are_and_others_do_their_work():
    done = run("""
        import os, weakref
        from types import FunctionType
        from vllm_ashutdown.process_exit import fast_exit

        def ends(what):
            print(what)

        torch = globals() | {"__name__": "torch.library"}
        of_torch = FunctionType(ends.__code__, torch)
        here = type("Here", (), {})()
        for end, what in ((ends, "a file"), (of_torch, "an operator")):
            weakref.finalize(here, end, what)
        assert of_torch.__module__ == "torch.library"
        fast_exit(0)
    """)
    assert (done.returncode, done.stdout) == (0, "a file\n"), done.stderr


def test_what_is_done_at_last_is_done_behind_the_hooks():
    done = run("""
        import atexit, sys
        from vllm_ashutdown.process_exit import at_last, fast_exit

        at_last(lambda: print("at last", file=sys.stderr, flush=True))
        atexit.register(print, "hook", file=sys.stderr, flush=True)
        fast_exit(0)
    """)
    assert (done.returncode, done.stderr) == (0, "hook\nat last\n")


def test_the_last_word_is_that_it_leaves_behind_everything_else():
    done = run("""
        import atexit, multiprocessing
        from vllm_ashutdown.process_exit import fast_exit
        from vllm_ashutdown.tree.entry import Entry
        from vllm_ashutdown.tree.home import Home
        from vllm_ashutdown.tree.place import home, take_in

        def child():
            atexit.register(print, "hook")
            fast_exit(3)

        saw = []
        home()
        take = Home.hear
        def taken(here, record, words):
            saw.append(words)
            take(here, record, words)
        Home.hear = taken
        process = multiprocessing.get_context("fork").Process(target=Entry(child))
        process.start()
        take_in([process])
        process.join()
        home().record(process.pid).gone.wait(10)
        print(saw, home().record(process.pid).leaving)
    """)
    assert done.stdout == "[{'is': 'leaving', 'code': 3}] 3\n", done
