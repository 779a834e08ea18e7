"""Makes one `Settings` of file, environment and flags: the stronger source wins, every problem names its source."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from everlog.app.setting_checks import contradictions
from everlog.app.setting_keys import all_keys
from everlog.app.setting_sources import Found, Given, find_config, from_environment, from_file, from_flags
from everlog.app.settings import Settings
from everlog.base import UsageError

DEFAULT = "default"


class BadSettings(UsageError):
    """The settings can't be used; `problems` has every reason, the message the first."""

    def __init__(self, problems: tuple[UsageError, ...]) -> None:
        super().__init__(problems[0].message, hint=problems[0].hint)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and where each value came from."""

    settings: Settings
    sources: Mapping[str, str]
    config: Path | None

    def source_of(self, path: str) -> str:
        """Return who set the key: a file, variable, flag, or `default`."""
        return self.sources.get(path, DEFAULT)

    def value_of(self, path: str) -> Any:
        """Return the effective value of the key."""
        section, _, name = path.partition(".")
        return getattr(getattr(self.settings, section), name)


def load(
    config: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Iterable[tuple[str, str, Any]] = (),
    directory: str = ".",
) -> Loaded:
    """Load the effective settings; `flags` are (flag, path of its key, value). BadSettings names all that is wrong."""
    path = find_config(config, directory)
    founds = (
        from_file(path) if path is not None else Found(),
        from_environment(os.environ if environ is None else environ),
        from_flags(flags),
    )
    problems = [problem for found in founds for problem in found.problems]
    given = {one.key.path: one for found in founds for one in found.given}  # the strongest source comes last
    settings = _convert(given, problems)
    sources = {name: one.source for name, one in given.items()}
    loaded = Loaded(settings, sources, path)
    problems += contradictions(settings, lambda name: _say(loaded, name))
    if problems:
        raise BadSettings(tuple(problems))
    return loaded


def _convert(given: Mapping[str, Given], problems: list[UsageError]) -> Settings:
    """Return settings with every good value; the others keep their default and add to `problems`."""
    values: dict[str, dict[str, Any]] = {}
    for one in given.values():
        try:
            values.setdefault(one.key.section, {})[one.key.name] = one.key.convert(one.value)
        except UsageError as error:
            problems.append(UsageError(f"{one.source}: {error.message}", hint=error.hint))
    defaults = Settings()
    sections = {section: _replace(getattr(defaults, section), change) for section, change in values.items()}
    return msgspec.structs.replace(defaults, **sections)


def _replace(section: Any, change: dict[str, Any]) -> Any:
    kind = type(section)
    return kind(**{name: getattr(section, name) for name in _names(section)} | change)


def _names(section: Any) -> list[str]:
    if isinstance(section, msgspec.Struct):
        return list(section.__struct_fields__)
    return list(section.__dataclass_fields__)


def _say(loaded: Loaded, path: str) -> str:
    """Return the source of a key, or its path when nobody set it."""
    assert path in all_keys(), path
    return loaded.sources.get(path, path)
