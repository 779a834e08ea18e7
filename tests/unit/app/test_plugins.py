"""Authentication methods by their import path."""

import sys

import pytest

from everlog.app import load, load_methods
from everlog.base import UsageError
from everlog.broker import ScramSha256

SCRAM = "everlog.broker:ScramSha256"


def test_a_method_is_found_by_its_path():
    assert load_methods({"SCRAM-SHA-256": SCRAM}) == {"SCRAM-SHA-256": ScramSha256}


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("everlog.broker", "not an import path"),
        (":x", "not an import path"),
        ("everlog.nothing:x", "can't be imported"),
        ("everlog.broker:nothing", "nothing callable"),
        ("everlog.broker:__name__", "nothing callable"),
    ],
)
def test_what_can_not_be_had_is_said(path, problem):
    with pytest.raises(UsageError, match=problem):
        load_methods({"M": path})


def test_code_that_fails_as_it_is_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_method.py").write_text("raise RuntimeError('no luck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="no luck"):
        load_methods({"M": "broken_method:Factory"})
    sys.modules.pop("broken_method", None)


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (f'[security.authentication_methods]\n"SCRAM-SHA-256" = "{SCRAM}"\n', {}),
        (f'[security]\nauthentication_methods = {{ "SCRAM-SHA-256" = "{SCRAM}" }}\n', {}),
        ("", {"EVERLOG_SECURITY_AUTHENTICATION_METHODS": f"SCRAM-SHA-256={SCRAM}"}),
    ],
)
def test_methods_are_given_in_the_file_or_the_environment(tmp_path, text, environ):
    (tmp_path / "everlog.toml").write_text(text)
    settings = load(environ=environ, directory=str(tmp_path)).settings
    assert settings.security.authentication_methods == {"SCRAM-SHA-256": SCRAM}
    assert not settings.allows_anonymous


def test_a_method_is_enough_for_a_listener_that_others_reach(tmp_path):
    (tmp_path / "everlog.toml").write_text(
        f'[listener]\nhost = "0.0.0.0"\n[security.authentication_methods]\nM = "{SCRAM}"\n'
    )
    load(environ={}, directory=str(tmp_path))
