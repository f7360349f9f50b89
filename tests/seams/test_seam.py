from __future__ import annotations

import functools

import pytest

from vllm_ashutdown.seams.seam import Guard, How, Seam, State


def stock(self, timeout=None, *, renderer=None):
    core = self.engine_core
    handler = getattr(self, "output_handler", None)

    def inner():
        return core.shutdown(deep_name)

    return inner, handler


deep_name = None


@functools.wraps(stock)
def wrapped(*args, **kwargs):
    return stock(*args, **kwargs)


class Callable:
    def __call__(self, port):
        return self.port


@pytest.mark.parametrize(
    "parameters",
    [
        (),
        ("self",),
        ("self", "timeout"),
        ("self", "timeout", "renderer"),
        ("self", "renderer"),  # others may stand between
        ("timeout",),
    ],
)
@pytest.mark.parametrize("function", [stock, wrapped])
def test_parameters_that_are_there_in_this_order_match(function, parameters):
    assert Guard(parameters=parameters).mismatch(function) is None


@pytest.mark.parametrize(
    ("parameters", "missing"),
    [
        (("port",), "port"),
        (("self", "seconds"), "seconds"),
        (("timeout", "self"), "self"),
        (("self", "renderer", "timeout"), "timeout"),
        (("self", "self"), "self"),
    ],
)
@pytest.mark.parametrize("function", [stock, wrapped])
def test_parameters_that_are_missing_or_in_another_order_do_not(
    function, parameters, missing
):
    reason = Guard(parameters=parameters).mismatch(function)
    assert reason == f"it takes (self, timeout, renderer), without {missing!r}"


@pytest.mark.parametrize(
    "name",
    [
        "engine_core",  # an attribute
        "timeout",  # a parameter
        "core",  # a variable
        "output_handler",  # a string constant
        "getattr",  # a global
        "deep_name",  # in a nested function
        "shutdown",
    ],
)
@pytest.mark.parametrize("function", [stock, wrapped])
def test_a_name_that_the_body_uses_matches(function, name):
    assert Guard(reads=(name,)).mismatch(function) is None


@pytest.mark.parametrize("function", [stock, wrapped])
def test_names_that_the_body_does_not_use_are_all_told(function):
    guard = Guard(reads=("gone", "engine_core", "absent", "output"))
    assert guard.mismatch(function) == "it no longer uses absent, gone, output"


def test_parameters_and_names_must_both_match():
    guard = Guard(parameters=("self",), reads=("engine_core",))
    assert guard.mismatch(stock) is None
    assert Guard(parameters=("self",), reads=("gone",)).mismatch(stock) is not None
    assert Guard(parameters=("x",), reads=("engine_core",)).mismatch(stock) is not None


def test_an_empty_guard_lets_everything_pass():
    for attribute in (stock, len, 7, {"a": 1}, Callable()):
        assert Guard().mismatch(attribute) is None


@pytest.mark.parametrize("attribute", [len, 7, Callable(), {"a": 1}])
def test_what_has_no_python_body_cannot_be_read(attribute):
    assert Guard(reads=("port",)).mismatch(attribute) == "it is not a Python function"


@pytest.mark.parametrize("attribute", [7, {"a": 1}, type("Odd", (), {})()])
def test_what_has_no_signature_does_not_match(attribute):
    reason = Guard(parameters=("port",)).mismatch(attribute)
    assert reason is not None
    assert reason.startswith("its signature cannot be read")


def test_a_method_is_read_like_a_function():
    class Engine:
        def method(self, port):
            return self.renderer, port

        @staticmethod
        def static(port):
            return port.bind

    assert Guard(("self", "port"), ("renderer",)).mismatch(Engine.method) is None
    assert Guard(("port",), ("bind",)).mismatch(Engine.static) is None
    assert Guard(("self",)).mismatch(Engine.static) is not None


def test_a_seam_knows_the_modules_of_its_targets():
    seam = Seam("s", ("a.b:C.d", "a.c:C.d"), How.WRAP, "m:f", "w", "r", "u")
    assert seam.modules == ("a.b", "a.c")
    assert (seam.guard, seam.needs) == (Guard(), ())
    assert [*How] == ["add", "wrap", "replace"]
    assert [*State] == ["waiting", "laid", "skipped"]
