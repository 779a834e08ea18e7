"""The locks that `make` installs from: pinned, with hashes, and naming no place that packages come from."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.lock_hashes import pins, version_of, with_hashes

TOP = Path(__file__).parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]


def lock(name: str) -> str:
    return (TOP / name).read_text()


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-run.lock"])
def test_every_line_of_a_lock_is_a_pin_or_a_hash(name: str) -> None:
    pin, digest = re.compile(r"[a-z0-9-]+==\S+( ; [^\\]+)? \\"), re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    lines = lock(name).splitlines()
    wrong = [line for line in lines if not (pin.fullmatch(line) or digest.fullmatch(line))]
    assert not wrong, "run: make lock"
    assert all(digest.fullmatch(after) for line, after in itertools.pairwise(lines) if pin.fullmatch(line))


def test_the_lock_has_all_that_is_asked_for_and_running_a_part_of_it() -> None:
    extras = PROJECT["optional-dependencies"].values()
    asked = {canonicalize_name(Requirement(one).name) for extra in (PROJECT["dependencies"], *extras) for one in extra}
    every, runs = pins(lock("requirements.lock")), pins(lock("requirements-run.lock"))
    assert asked - {"everlog"} <= set(every)
    assert {canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]} <= set(runs)
    assert set(runs.items()) <= set(every.items())


def test_make_takes_nothing_of_the_locks_without_its_hash() -> None:
    installs = [line for line in (TOP / "Makefile").read_text().splitlines() if "-r requirements" in line]
    of_locks = [line for line in installs if "--require-hashes" in line]
    assert [re.search(r"requirements\S*", line)[0] for line in of_locks] == [  # type: ignore[index]
        "requirements-run.lock",
        "requirements.lock",
    ]


def test_hashes_are_those_of_the_files_of_a_version() -> None:
    assert version_of("a_b-1.0-py3-none-any.whl") == Version("1.0") == version_of("a_b-1.0.tar.gz")
    assert version_of("a_b-1.0.exe") is None
    text = with_hashes({"b": '2 ; python_version < "4"', "a": "1"}, {"a": ["00", "11"], "b": ["22"]})
    assert text == (
        'a==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nb==2 ; python_version < "4" \\\n    --hash=sha256:22\n'
    )
    assert pins(text) == {"a": "1", "b": '2 ; python_version < "4"'}
    with pytest.raises(SystemExit, match="no index has a hash for a 1"):
        with_hashes({"a": "1"}, {"a": []})
