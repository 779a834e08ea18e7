"""Adds to requirements.lock the hashes of all files of each version, and writes the part of it that running needs.

`tools/lock_hashes.py` asks the indexes that pip is set to for the hashes that they publish, and downloads nothing. It
names no index in what it writes. The packages must be installed as locked: they say what running needs.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename
from packaging.utils import parse_wheel_filename as parse_wheel
from packaging.version import Version

LOCK, RUN = Path("requirements.lock"), Path("requirements-run.lock")
BUILD = ("setuptools", "cython")  # that the kernels are built with


def pins(text: str) -> dict[str, str]:
    """Return the version of each package in a lock, and behind a semicolon for whom it is."""
    lines = (line.split("--hash")[0].rstrip(" \\") for line in text.splitlines() if "==" in line and line[0] != "#")
    return {canonicalize_name(name): version for name, version in (line.split("==", 1) for line in lines)}


def needed(names: Iterable[str]) -> set[str]:
    """Return installed packages and all that they need, without their extras."""
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [
                canonicalize_name(one.name)
                for one in map(Requirement, distribution(name).requires or ())
                if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
    return found


def version_of(filename: str) -> Version | None:
    """Return the version that a file of an index is of, None for what can't be installed."""
    try:
        if filename.endswith(".whl"):
            return parse_wheel(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None


def with_hashes(pinned: dict[str, str], hashes: dict[str, list[str]]) -> str:
    """Write a lock; a package without hashes is an error."""
    lines = []
    for name, version in sorted(pinned.items()):
        if not hashes[name]:
            sys.exit(f"no index has a hash for {name} {version}: check pip's settings")
        lines.append(f"{name}=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{one}" for one in hashes[name]))
    return "\n".join(lines) + "\n"


def files_of(names: Iterable[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each package with file names and hashes, as the indexes that pip uses list them."""
    from pip._internal.commands import create_command
    from pip._internal.index.collector import parse_links

    command = create_command("index")
    options, _ = command.parse_args(["versions", "any"])
    with command.main_context():
        finder = command._build_package_finder(options=options, session=command.get_default_session(options))
        collector = finder._link_collector
        for name in names:
            found: list[tuple[str, str]] = []

            def take(link: object, found: list[tuple[str, str]] = found) -> list[object]:
                page = collector.fetch_response(link)
                links = () if page is None else parse_links(page)
                found.extend((one.filename, one._hashes["sha256"]) for one in links if "sha256" in one._hashes)
                return []

            for source in collector.collect_sources(name, candidates_from_page=take).index_urls:
                if source is not None:
                    list(source.page_candidates())
            yield name, found


def main() -> None:
    """Write both locks."""
    pinned = pins(LOCK.read_text())
    wanted = {name: Version(pin.split(";")[0]) for name, pin in pinned.items()}
    hashes = {
        name: sorted({digest for filename, digest in files if version_of(filename) == wanted[name]})
        for name, files in files_of(pinned)
    }
    runs = needed([*BUILD, *(Requirement(one).name for one in _dependencies())])
    LOCK.write_text(with_hashes(pinned, hashes))
    RUN.write_text(with_hashes({name: pinned[name] for name in runs}, hashes))


def _dependencies() -> list[str]:
    project: list[str] = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    return project


if __name__ == "__main__":
    main()
