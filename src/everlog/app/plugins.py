"""Plugins that the settings name by an import path, `package.module:Name`."""

import importlib
from collections.abc import Mapping

from everlog.base import UsageError
from everlog.broker import Factory


def load_methods(named: Mapping[str, str]) -> dict[str, Factory]:
    """Load the factories of `security.authentication_methods`; raises UsageError if one can't be loaded."""
    return {method: _load(path, f"authentication method {method!r}") for method, path in named.items()}


def _load(path: str, what: str) -> Factory:
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(f"{what}: {path!r} is not an import path", hint='write it like "package.module:Factory"')
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(
            f"{what}: {module_name} can't be imported: {error!r}", hint="is it installed with everlog?"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"{what}: {module_name} has nothing callable named {name}")
    factory: Factory = found
    return factory
