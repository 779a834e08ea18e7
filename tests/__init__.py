"""A package, so that `tests` is this one and not the `tests` that a dependency installs."""
