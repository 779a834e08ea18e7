"""`everlog config show|check`: the effective settings and where they come from."""

from typing import Annotated

import typer

from everlog.app import Loaded, all_keys, load, load_methods, section_meaning
from everlog.broker import Security
from everlog.cli.table_printer import AsJson, print_json

app = typer.Typer(rich_markup_mode=None)

ConfigOption = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Instead of ./everlog.toml.")]


@app.command()
def show(
    config: ConfigOption = None,
    toml: Annotated[bool, typer.Option("--toml", help="As a complete everlog.toml.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    json: AsJson = False,
) -> None:
    """Show every setting, its value and who set it."""
    loaded = load(config)
    paths = [path for path in all_keys() if not changed or path in loaded.sources]
    if json:
        named = ((path, all_keys()[path].show(loaded.value_of(path)), loaded.source_of(path)) for path in paths)
        print_json({"setting": path, "value": value, "source": source} for path, value, source in named)
        return
    print(as_toml(loaded, paths) if toml else as_table(loaded, paths))


@app.command()
def check(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Instead of ./everlog.toml.")] = None,
) -> None:
    """Check the settings, and the password and ACL files that they name, without starting anything."""
    loaded = load(file)
    security = loaded.settings.security
    Security(
        password_file=security.password_file,
        acl_file=security.acl_file,
        methods=load_methods(security.authentication_methods),
    )
    count = len(loaded.sources)
    print(f"{loaded.config or 'no everlog.toml'}: good, {count} setting{'s' * (count != 1)} given")


def as_table(loaded: Loaded, paths: list[str]) -> str:
    """Return keys, values and sources in columns."""
    rows = [("setting", "value", "source")]
    rows += [(path, all_keys()[path].show(loaded.value_of(path)), loaded.source_of(path)) for path in paths]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{first}}  {value:<{second}}  {source}" for name, value, source in rows)


def as_toml(loaded: Loaded, paths: list[str]) -> str:
    """Return a file with these settings, the meaning of each above it."""
    lines: list[str] = []
    section = ""
    for path in paths:
        key = all_keys()[path]
        if key.section != section:
            section = key.section
            lines += [""] * bool(lines) + [f"[{section}]  # {section_meaning(section)}"]
        lines.append(f"# {key.description}")
        lines.append(f"{key.name} = {key.show(loaded.value_of(path), toml=True)}")
    return "\n".join(lines)
