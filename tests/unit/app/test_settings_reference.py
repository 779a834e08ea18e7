"""The page of settings says what the schema says, no more and no less."""

import re
from pathlib import Path

import pytest

from everlog.app import all_keys
from everlog.app.settings_reference import renew

PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"
RENEW = "run: python -m everlog.app.settings_reference docs/reference/settings.md"


def documented() -> set[str]:
    found, section = set(), ""
    for line in PAGE.read_text().splitlines():
        if heading := re.fullmatch(r"## \[(\w+)\]", line):
            section = heading[1]
        elif section and (row := re.match(r"\| `(\w+)` \|", line)):
            found.add(f"{section}.{row[1]}")
    return found


def test_every_setting_is_documented():
    assert set(all_keys()) - documented() == set(), RENEW


def test_nothing_else_is_documented():
    assert documented() - set(all_keys()) == set(), RENEW


def test_defaults_units_and_meanings_are_those_of_the_schema():
    assert PAGE.read_text() == renew(PAGE.read_text()), RENEW


@pytest.mark.parametrize("key", all_keys().values(), ids=lambda key: key.path)
def test_every_setting_says_what_it_means(key):
    assert len(key.description) > 10
