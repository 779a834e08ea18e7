"""Masks and shapes, without Spark."""

import pytest

from everlog.spark.jobs.history_summary import moment
from everlog.spark.jobs.level_masks import CLASSES, mask
from everlog.spark.jobs.shape_anomalies import strangers
from everlog.spark.jobs.structure_file import Level, Shape, Structure, read_structure, write_structure
from everlog.spark.jobs.topic_shapes import Pattern, learn_shapes


def shapes_of(*topics: str, times: int = 1) -> set[str]:
    """The shapes of topics, with `*` where they vary."""
    counts: dict[tuple[str, ...], int] = {}
    for topic in topics:
        levels = tuple(mask(level) for level in topic.split("/"))
        counts[levels] = counts.get(levels, 0) + times
    patterns = [Pattern(levels, topics, topics) for levels, topics in counts.items()]
    drafts = learn_shapes(patterns)
    assert sorted(row for draft in drafts for row in draft.patterns) == list(range(len(patterns)))
    return {"/".join("*" if level is None else level for level in draft.levels) for draft in drafts}


@pytest.mark.parametrize(
    ("level", "masked"),
    [
        ("", ""),
        ("kitchen", "kitchen"),
        ("42", "{number}"),
        ("-3.5", "{number}"),
        ("press-42", "press-{number}"),
        ("v1", "v{number}"),
        ("3f2504e0-4f89-11d3-9a0c-0305e82c3301", "{uuid}"),
        ("2026-01-05", "{date}"),
        ("2026-01-05T10:00:00Z", "{date}"),
        ("192.168.0.1", "{ip}"),
        ("00:1b:44:11:3a:b7", "{mac}"),
        ("deadbeef01", "{hex}"),
        ("facade", "facade"),
        ("temperature-sensor-12", "temperature-sensor-{number}"),
        ("7fGh2kLm9Qw3Xy5Zab", "{id}"),
        ("Zürich", "Zürich"),
    ],
)
def test_levels_are_masked(level: str, masked: str) -> None:
    assert mask(level) == masked
    assert masked in CLASSES or "{" not in masked or masked.count("{number}") >= 1


def test_values_with_the_same_beneath_them_vary() -> None:
    rooms = [f"home/{room}/{what}" for room in ("kitchen", "bath", "hall") for what in ("temp", "light")]
    assert shapes_of(*rooms) == {"home/*/temp", "home/*/light"}


def test_values_with_nothing_in_common_are_part_of_the_shape() -> None:
    assert shapes_of("home/door/open/now", "home/heating/flow/temp") == {
        "home/door/open/now",
        "home/heating/flow/temp",
    }


def test_many_names_vary_though_what_is_beneath_differs() -> None:
    names = ["anna", "bert", "carl", "dora", "emil", "fina", "gert", "hans", "ida", "jan", "kai", "lea", "max", "nina"]
    topics = [f"users/{name}/{name}s-device/state" for name in names]
    assert shapes_of(*topics) == {"users/*/*/state"}


def test_a_word_among_numbers_stands_apart() -> None:
    topics = [f"sensor/{n}/temp" for n in range(50)]
    assert shapes_of(*topics, "sensor/broken/temp") == {"sensor/{number}/temp", "sensor/broken/temp"}


def test_a_misspelt_word_stands_apart_from_the_one_it_was_meant_to_be() -> None:
    topics = [f"plant/{place}/sensor/{n}" for place in ("rome", "oslo") for n in range(50)]
    assert shapes_of(*topics, "plant/rome/senser/3") == {"plant/*/sensor/{number}", "plant/*/senser/{number}"}


def test_a_misspelt_word_that_is_hardly_used_stands_apart_among_few_topics() -> None:
    def learned(messages: int) -> set[tuple[str | None, ...]]:
        words = (("press", 40), ("press", 40), ("pres", messages))
        rows = [Pattern((place, word, "temp"), 1, count) for place, (word, count) in zip("abb", words, strict=True)]
        return {draft.levels for draft in learn_shapes(rows)}

    assert learned(1) == {(None, "press", "temp"), (None, "pres", "temp")}
    assert learned(40) == {(None, None, "temp")}


def test_hexadecimal_numbers_without_a_letter_are_of_the_same_kind() -> None:
    topics = ["device/deadbeef01/up", "device/1234567890/up", "device/00c0ffee99/up"]
    assert shapes_of(*topics) == {"device/{hex}/up"}


def test_topics_of_the_server_are_not_mixed_with_others() -> None:
    topics = [f"{first}/load/{n}min" for first in ("a", "b", "$SYS") for n in (1, 5)]
    assert shapes_of(*topics) == {"*/load/{number}min", "$SYS/load/{number}min"}


def level(text: str, *values: str, kind: str = "") -> Level:
    return Level(kind or ("number" if text == "{number}" else "fixed"), text, len(values) or 1, values or (text,))


def shape(*levels: Level, topics: int, messages: int) -> Shape:
    text = "/".join(one.text for one in levels)
    varying = tuple(n for n, one in enumerate(levels) if one.varies)
    return Shape(text, text, topics, messages, 0, moment(0), moment(0), levels, varying)


COMMON = shape(level("plant"), level("{number}", "1", "200"), level("temp"), topics=200, messages=20_000)


@pytest.mark.parametrize(
    ("rare", "why"),
    [
        ((level("plant"), level("7"), level("tmp")), "level 3 is 'tmp' where plant/{number}/temp has 'temp'"),
        ((level("plant"), level("abc"), level("temp")), "level 2 is 'abc' where plant/{number}/temp has '{number}'"),
        ((level("plant"), level("temp")), "lacks a level of plant/{number}/temp"),
        ((level(""), level("plant"), level("7"), level("temp")), "has a level more than plant/{number}/temp"),
        ((level("hello"),), "unlike any other shape, and hardly used"),
    ],
)
def test_a_stray_topic_is_told_with_what_it_was_meant_to_be(rare: tuple[Level, ...], why: str) -> None:
    kept, notes = strangers([COMMON, shape(*rare, topics=1, messages=1)])
    assert kept == [COMMON]
    assert [note.why for note in notes] == [why]
    assert notes[0].kind == "fits no shape"


def test_a_single_topic_that_is_used_is_a_shape_of_its_own() -> None:
    status = shape(level("status"), topics=1, messages=900)
    assert strangers([COMMON, status]) == ([COMMON, status], [])


def test_the_structure_comes_back_from_its_file(tmp_path) -> None:
    _, notes = strangers([COMMON, shape(level("x"), topics=1, messages=1)])
    found = Structure(200, 20_000, (COMMON,), tuple(notes))
    path = tmp_path / "structure.json"
    write_structure(found, path)
    assert read_structure(path) == found
    assert list(tmp_path.iterdir()) == [path]


def test_a_structure_of_another_version_is_not_used(tmp_path) -> None:
    path = tmp_path / "structure.json"
    assert read_structure(path) is None
    write_structure(Structure(0, 0, (), version=2), path)
    assert read_structure(path) is None


def test_topics_sort_by_shape_and_then_by_the_level_with_fewest_values() -> None:
    places = level("{2 values}", "oslo", "rome", kind="name")
    numbers = level("{number}", *map(str, range(12)))
    fixed = shape(level("plant"), level("main"), numbers, topics=12, messages=1)
    plants = shape(level("plant"), places, numbers, topics=24, messages=2)
    structure = Structure(36, 3, (plants, fixed))
    assert structure.shape_of("plant/rome/7") == 0
    assert structure.shape_of("plant/main/7") == 1
    assert structure.shape_of("plant/rome/seven") is None
    topics = ["plant/rome/10", "plant/oslo/9", "plant/rome/2", "plant/main/1", "other", "plant/oslo/11"]
    assert sorted(topics, key=structure.cluster_key) == [
        "plant/oslo/9",
        "plant/oslo/11",
        "plant/rome/2",
        "plant/rome/10",
        "plant/main/1",
        "other",
    ]
