"""The place of a table, a directory or a prefix of a bucket: how to reach it, and whether its puts can be trusted.

A commit of the table is a put that must fail when the name is taken. A bucket that ignores the condition would let two
writers commit the same version, so that is tested before anything is written.
"""

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from everlog.base import StorageError, UsageError

SCHEMES = ("s3", "s3a")
_PROBE = "_everlog/probe-"


@dataclass(frozen=True, slots=True)
class Location:
    """A table's place; `options` are those of deltalake, such as AWS_REGION, and may hold secrets."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory that this machine sees."""
        return "://" not in self.uri

    def filesystem(self) -> tuple[fs.FileSystem, str]:
        """Return Arrow's file system, and the path of the table's root in it."""
        if self.is_local:
            return fs.LocalFileSystem(), self.uri
        parts = urlsplit(self.uri)
        return fs.S3FileSystem(**_arrow_options(self.options)), parts.netloc + parts.path.rstrip("/")

    def named_options(self) -> list[str]:
        """Return the names of the options, which are not secret."""
        return sorted(self.options)


def locate(text: str, options: Mapping[str, str] | None = None) -> Location:
    """Return the place that a path or address names; a bucket's options win over the AWS_ variables."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Location(os.path.abspath(text), {})
    if scheme == "file":
        return Location(os.path.abspath(rest), {})
    if scheme not in SCHEMES or not urlsplit(text).netloc:
        raise UsageError(f"{text!r} is not a place for a table", hint="give a directory or s3://bucket/prefix")
    found = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return Location(f"s3://{rest.rstrip('/')}", found | {name.upper(): text for name, text in (options or {}).items()})


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse options written as `NAME=VALUE`."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise UsageError("an option is written NAME=VALUE", hint="for example AWS_REGION=eu-central-1")
        found[name] = value
    return found


def check_bucket(location: Location) -> None:
    """Refuse a bucket whose puts take no condition: a put that must not overwrite is made twice."""
    if location.is_local:
        return
    try:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError
        from obstore.store import S3Store
    except ImportError as error:
        raise UsageError(f"a table in a bucket needs obstore ({error})", hint="pip install 'everlog[s3]'") from error

    config, client = _obstore_options(location.options)
    path = _PROBE + uuid.uuid4().hex
    try:
        store = S3Store.from_url(location.uri, config=config, client_options=client)
        obstore.put(store, path, b"probe", mode="create")
        try:
            obstore.put(store, path, b"probe", mode="create")
        except AlreadyExistsError:
            return
        finally:
            obstore.delete(store, path)
    except (BaseError, OSError) as error:
        raise StorageError(
            f"{location.uri} can't be written to: {str(error).splitlines()[0]}",
            hint="check the bucket's name, AWS_REGION, AWS_ENDPOINT_URL and the credentials",
        ) from error
    raise StorageError(
        f"{location.uri} does not keep to conditional puts, so two writers could overwrite each other's commits",
        hint="use a bucket that supports If-None-Match, or a directory",
    )


def _arrow_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return deltalake's options under the names of Arrow's S3 client, which finds the missing ones by itself."""
    names = {
        "AWS_ACCESS_KEY_ID": "access_key",
        "AWS_SECRET_ACCESS_KEY": "secret_key",
        "AWS_SESSION_TOKEN": "session_token",
        "AWS_REGION": "region",
    }
    chosen: dict[str, Any] = {ours: options[name] for name, ours in names.items() if name in options}
    endpoint = options.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        parts = urlsplit(endpoint)
        chosen |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    return chosen


def _obstore_options(options: Mapping[str, str]) -> tuple[Any, Any]:
    """Return deltalake's options as obstore takes them: those of the store, and those of the client."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION")
    config = {name.lower(): options[name] for name in names if name in options}
    if "AWS_ENDPOINT_URL" in options:
        config["aws_endpoint"] = options["AWS_ENDPOINT_URL"]
    return config, {"allow_http": options.get("AWS_ALLOW_HTTP", "").lower() == "true"}
