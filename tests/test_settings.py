from __future__ import annotations

import logging

import pytest

import vllm_ashutdown
from vllm_ashutdown import settings
from vllm_ashutdown.errors import InvalidSettingError
from vllm_ashutdown.seams import installer

READERS = {
    settings.ENABLED: settings.enabled,
    settings.TEARDOWN_SECONDS: settings.teardown_seconds,
    settings.RETRY_AFTER_SECONDS: settings.retry_after_seconds,
    settings.FAST_EXIT: settings.fast_exit,
    settings.STATE_DIRECTORY: settings.state_directory,
    settings.REPORT: settings.report_path,
}

GOOD = [
    (settings.ENABLED, "0", False),
    (settings.ENABLED, "1", True),
    (settings.ENABLED, " Off ", False),
    (settings.ENABLED, "TRUE", True),
    (settings.FAST_EXIT, "no", False),
    (settings.FAST_EXIT, "yes", True),
    (settings.TEARDOWN_SECONDS, "0.5", 0.5),
    (settings.TEARDOWN_SECONDS, "3", 3.0),
    (settings.TEARDOWN_SECONDS, "1e2", 100.0),
    (settings.RETRY_AFTER_SECONDS, "0", 0),
    (settings.RETRY_AFTER_SECONDS, "120", 120),
    (settings.REPORT, "/tmp/a report.json", "/tmp/a report.json"),
]

BAD = [
    (settings.ENABLED, "maybe"),
    (settings.ENABLED, "2"),
    (settings.FAST_EXIT, "-"),
    (settings.TEARDOWN_SECONDS, "0"),
    (settings.TEARDOWN_SECONDS, "-1"),
    (settings.TEARDOWN_SECONDS, "nan"),
    (settings.TEARDOWN_SECONDS, "inf"),
    (settings.TEARDOWN_SECONDS, "1e999"),
    (settings.TEARDOWN_SECONDS, "ten"),
    (settings.TEARDOWN_SECONDS, "10s"),
    (settings.RETRY_AFTER_SECONDS, "-1"),
    (settings.RETRY_AFTER_SECONDS, "1.5"),
    (settings.RETRY_AFTER_SECONDS, "soon"),
    (settings.RETRY_AFTER_SECONDS, "9" * 5000),
]


def names(value: object) -> str:
    return getattr(value, "name", str(value))[:40]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for variable in settings.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setattr(settings, "_warned", set())


def test_every_variable_has_one_prefix_a_reader_and_words_for_people():
    assert set(READERS) == set(settings.VARIABLES)
    names_ = [variable.name for variable in settings.VARIABLES]
    assert len(set(names_)) == len(names_)
    assert all(name.startswith("VLLM_ASHUTDOWN") for name in names_)
    assert all(one.allowed and one.meaning for one in settings.VARIABLES)


@pytest.mark.parametrize("variable", settings.VARIABLES, ids=names)
@pytest.mark.parametrize("text", [None, "", "  "])
def test_without_a_value_the_default_holds_in_silence(variable, text, monkeypatch, log):
    if text is not None:
        monkeypatch.setenv(variable.name, text)
    assert READERS[variable]() == variable.default
    settings.warn_about_malformed()
    assert log.records == []


@pytest.mark.parametrize(("variable", "text", "value"), GOOD, ids=names)
def test_a_value_is_read_when_it_is_asked_for(variable, text, value, monkeypatch, log):
    monkeypatch.setenv(variable.name, text)
    read = READERS[variable]()
    assert read == value
    assert type(read) is type(variable.default)
    settings.warn_about_malformed()
    assert log.records == []
    monkeypatch.delenv(variable.name)
    assert READERS[variable]() == variable.default


@pytest.mark.parametrize(("variable", "text"), BAD, ids=names)
def test_a_value_that_means_nothing_is_warned_of_once_and_the_default_holds(
    variable, text, monkeypatch, log
):
    monkeypatch.setenv(variable.name, text)
    assert READERS[variable]() == variable.default
    assert log.records == [], "reading is silent: it happens in the middle of a stop"
    settings.warn_about_malformed()
    settings.warn_about_malformed()
    (record,) = log.records
    assert record.levelno == logging.WARNING
    for said in (variable.name, repr(text), variable.allowed, str(variable.default)):
        assert said in record.getMessage()
    with pytest.raises(InvalidSettingError) as caught:
        variable.read()
    assert (caught.value.name, caught.value.value) == (variable.name, text)


def test_each_value_that_means_nothing_has_a_warning_of_its_own(monkeypatch, log):
    monkeypatch.setenv(settings.FAST_EXIT.name, "perhaps")
    monkeypatch.setenv(settings.TEARDOWN_SECONDS.name, "long")
    settings.warn_about_malformed()
    assert len(log.records) == 2
    monkeypatch.setenv(settings.FAST_EXIT.name, "hardly")
    settings.warn_about_malformed()
    assert len(log.records) == 3


@pytest.fixture
def installed(monkeypatch):
    """How often seams were laid."""
    calls: list[object] = []
    monkeypatch.setattr(installer, "install", calls.append)
    return calls


@pytest.mark.parametrize("text", ["0", "false", "off", "no"])
def test_switched_off_it_lays_nothing_and_says_nothing(
    text, monkeypatch, installed, log
):
    monkeypatch.setenv(settings.ENABLED.name, text)
    monkeypatch.setenv(settings.TEARDOWN_SECONDS.name, "nonsense")
    vllm_ashutdown.register()
    assert installed == []
    assert log.records == []


@pytest.mark.parametrize("text", ["", "1", "on"])
def test_switched_on_it_lays_its_seams(text, monkeypatch, installed, log):
    monkeypatch.setenv(settings.ENABLED.name, text)
    vllm_ashutdown.register()
    assert len(installed) == 1
    assert log.records == []


def test_a_typing_error_costs_a_warning_and_not_the_plugin(monkeypatch, installed, log):
    monkeypatch.setenv(settings.ENABLED.name, "ture")
    vllm_ashutdown.register()
    assert len(installed) == 1
    (record,) = log.records
    assert "'ture'" in record.getMessage()
