"""What a data directory says of what is kept."""

import pytest

from everlog.base import StorageError
from everlog.store import KeepRules, read_keep_rules, say_unkept, unkept_notes, write_keep_rules


def test_the_rules_are_read_as_they_were_written(tmp_path):
    assert read_keep_rules(str(tmp_path)) is None
    rules = KeepRules(filters=("a/#",), never=("a/b",), min_qos=1)
    write_keep_rules(str(tmp_path), KeepRules())
    write_keep_rules(str(tmp_path), rules)
    assert read_keep_rules(str(tmp_path)) == rules
    assert [path.name for path in tmp_path.iterdir()] == ["keep.json"]


def test_filters_that_nothing_keeps_are_named(tmp_path):
    assert unkept_notes(str(tmp_path), ["a"]) == []  # nobody knows
    write_keep_rules(str(tmp_path), KeepRules(filters=("a/#",), never=("a/b",)))
    assert unkept_notes(str(tmp_path), ["a/+", "a/b", "c", "#"]) == [say_unkept("a/b"), say_unkept("c")]


@pytest.mark.parametrize("text", ["{", '{"filters": 1}', '{"version": 2}'])
def test_a_file_that_is_not_known_is_told_and_stops_nobody(tmp_path, text):
    (tmp_path / "keep.json").write_text(text)
    with pytest.raises(StorageError):
        read_keep_rules(str(tmp_path))
    (note,) = unkept_notes(str(tmp_path), ["a"])
    assert "keep.json" in note
