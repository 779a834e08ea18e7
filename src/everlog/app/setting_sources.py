"""The sources of settings: `everlog.toml`, `EVERLOG_…` variables, flags. Each says what it found and where.

A source knows names, not values: an unknown name is refused here, with the name that was probably meant.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlog.app.setting_keys import NONE_WORDS, PREFIX, Key, all_keys
from everlog.base import UsageError

CONFIG_NAME = "everlog.toml"

_CLOSE = (
    0.8  # a variable this close to one of ours is a typo; others are not ours (Kubernetes sets EVERLOG_PORT=tcp://…)
)


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody set, and where."""

    key: Key
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Found:
    """What one source holds, and what is wrong with its names."""

    given: tuple[Given, ...] = ()
    problems: tuple[UsageError, ...] = ()


def find_config(named: str | None, directory: str = ".") -> Path | None:
    """Return the file that was asked for, or `everlog.toml` here if there is one."""
    if named is not None:
        return Path(named)
    path = Path(directory, CONFIG_NAME)
    return path if path.is_file() else None


def from_file(path: Path) -> Found:
    """Read the keys of a TOML file; its relative paths start at the file's directory."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", hint="name another with --config, or leave it out") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {error}", hint="it must be a readable UTF-8 file") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not valid TOML: {error}", hint="strings need quotes, tables are [section]") from None
    given: list[Given] = []
    problems: list[UsageError] = []
    for section, table in tables.items():
        if section not in _sections() or not isinstance(table, dict):
            problems.append(_unknown_section(f"{path}: {section}", section, table))
            continue
        for name, value in table.items():
            key, source = all_keys().get(f"{section}.{name}"), f"{path}: {section}.{name}"
            if key is None:
                problems.append(_unknown_key(source, section, name))
            else:
                given.append(Given(key, _anchored(key, value, path.parent), source))
    return Found(tuple(given), tuple(problems))


def from_environment(environ: Mapping[str, str]) -> Found:
    """Read every variable `EVERLOG_<SECTION>_<KEY>`; an empty one counts as unset."""
    variables = {key.variable: key for key in all_keys().values()}
    given: list[Given] = []
    problems: list[UsageError] = []
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        if key := variables.get(variable):
            given.append(Given(key, text, variable))
            continue
        meant = difflib.get_close_matches(variable[len(PREFIX) :], [v[len(PREFIX) :] for v in variables], 1, _CLOSE)
        if meant:
            problems.append(UsageError(f"{variable}: no such setting", hint=f"did you mean {PREFIX}{meant[0]}?"))
        elif any(variable.startswith(f"{PREFIX}{section.upper()}_") for section in _sections()):
            problems.append(UsageError(f"{variable}: no such setting", hint="everlog config show lists them all"))
    return Found(tuple(given), tuple(problems))


def from_flags(flags: Iterable[tuple[str, str, Any]]) -> Found:
    """Read flags given as (flag, path of the key, value); None and an empty list mean not given."""
    given: list[Given] = []
    problems: list[UsageError] = []
    for flag, path, value in flags:
        if value is None or value == []:
            continue
        if key := all_keys().get(path):
            given.append(Given(key, value, flag))
            continue
        section, _, name = path.partition(".")
        known = section in _sections()
        problems.append(_unknown_key(flag, section, name) if known else _unknown_section(flag, section, value))
    return Found(tuple(given), tuple(problems))


def _sections() -> dict[str, None]:
    return dict.fromkeys(key.section for key in all_keys().values())


def _anchored(key: Key, value: Any, directory: Path) -> Any:
    if key.unit != "path" or not isinstance(value, str) or not value or value.lower() in NONE_WORDS:
        return value
    return str(directory / os.path.expanduser(value))


def _unknown_key(source: str, section: str, name: str) -> UsageError:
    names = [key.name for key in all_keys().values() if key.section == section]
    if close := difflib.get_close_matches(name, names, 1):
        return UsageError(f"{source}: no such setting", hint=f"did you mean {close[0]}?")
    if homes := [key.section for key in all_keys().values() if key.name == name]:
        return UsageError(f"{source}: no such setting", hint=f"{name} belongs to [{homes[0]}]")
    return UsageError(f"{source}: no such setting", hint=f"[{section}] has {', '.join(names)}")


def _unknown_section(source: str, section: str, value: Any) -> UsageError:
    if section in _sections():
        return UsageError(f"{source}: {value!r} is not a table", hint=f"write [{section}] on a line of its own")
    if homes := [key.section for key in all_keys().values() if key.name == section]:
        return UsageError(f"{source}: no such section", hint=f"{section} is a key of [{homes[0]}]")
    close = difflib.get_close_matches(section, list(_sections()), 1)
    return UsageError(
        f"{source}: no such section",
        hint=f"did you mean [{close[0]}]?" if close else f"the sections are {', '.join(_sections())}",
    )
