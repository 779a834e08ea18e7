"""The page of settings says what the schema says, no more and no less."""

import re
from pathlib import Path

import pytest
from tests.system.terminal import blocks

from everlog.app import BadSettings, all_keys, load
from everlog.app.settings_reference import renew

PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"
PAGES = sorted(PAGE.parents[1].rglob("*.md"))
BLOCKS = [(page.name, block) for page in PAGES for kind, block in blocks(page.read_text()) if kind == "toml"]
ELSEWHERE = ("can't be read", "no listener uses TLS", "without a password")
RENEW = "run: python -m everlog.app.settings_reference docs/reference/settings.md"


def documented() -> set[str]:
    found, section = set(), ""
    for line in PAGE.read_text().splitlines():
        if heading := re.fullmatch(r"## \[(\w+)\]", line):
            section = heading[1]
        elif section and (row := re.match(r"\| `(\w+)` \|", line)):
            found.add(f"{section}.{row[1]}")
    return found


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_the_settings_that_pages_show_are_taken(page, block, tmp_path):
    """Files that a page makes before, and what it says further up, are not there."""
    (tmp_path / "everlog.toml").write_text(block)
    told: list[str] = []
    try:
        load(str(tmp_path / "everlog.toml"), environ={})
    except BadSettings as error:
        told = [str(one) for one in error.problems if not any(part in str(one) for part in ELSEWHERE)]
    assert told == [], page


def test_every_setting_is_documented():
    assert set(all_keys()) - documented() == set(), RENEW


def test_nothing_else_is_documented():
    assert documented() - set(all_keys()) == set(), RENEW


def test_defaults_units_and_meanings_are_those_of_the_schema():
    assert PAGE.read_text() == renew(PAGE.read_text()), RENEW


@pytest.mark.parametrize("key", all_keys().values(), ids=lambda key: key.path)
def test_every_setting_says_what_it_means(key):
    assert len(key.description) > 10
