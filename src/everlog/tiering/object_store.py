"""A bucket of an object store, such as S3, by obstore, which also tries again, with jitter, what may pass."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from everlog.base import StorageError, Unavailable, UsageError
from everlog.tiering.ports import StoredObject

T = TypeVar("T")

_INSTALL = "pip install 'everlog[bucket]'"
_CHECK = "check the bucket's name, region, endpoint and the credentials"
_RETRIES = {
    "max_retries": 5,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
    "retry_timeout": timedelta(seconds=20),
}
_ATTEMPTS, _AGAIN_S = 100, 0.05  # an object that is neither there nor may be made is being made or deleted just now


class ObjectStoreBucket:
    """Objects in an object store; any thread may call."""

    def __init__(self, store: Any, title: str) -> None:
        self._store = store
        self._title = title
        self._obstore, self._errors = _load()

    def create(self, name: str, data: bytes) -> bytes | None:
        """Make an object unless there is one, whose content is returned."""
        for _ in range(_ATTEMPTS):
            if self._ask(lambda: self._create(name, data)):
                return None
            there = self.get(name)
            if there is not None:
                return None if there == data else there
            time.sleep(_AGAIN_S)
        raise Unavailable(f"{self._title}: {name} can neither be made nor read", hint=_CHECK)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Make or replace an object."""
        self._ask(lambda: self._obstore.put(self._store, name, data))

    def put_file(self, name: str, path: str) -> None:
        """Make or replace an object from a local file, in parts if it is large."""
        self._ask(lambda: self._obstore.put(self._store, name, Path(path)))

    def get(self, name: str) -> bytes | None:
        """Return an object's content, or None."""
        return self._ask(lambda: self._get(name))

    def get_range(self, name: str, start: int, size: int) -> bytes | None:
        """Return a part of an object, or None if there is none."""
        return self._ask(lambda: self._get_range(name, start, size))

    def find(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of a folder."""
        pages = iter(self._ask(lambda: self._obstore.list(self._store, prefix or None)))
        while (page := self._ask(lambda: next(pages, None))) is not None:
            for meta in page:
                yield StoredObject(meta["path"], meta["size"], meta["last_modified"].timestamp())

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._ask(lambda: self._delete(name))

    def _create(self, name: str, data: bytes) -> bool:
        try:
            self._obstore.put(self._store, name, data, mode="create")
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
            return False
        return True

    def _get(self, name: str) -> bytes | None:
        try:
            return bytes(self._obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def _get_range(self, name: str, start: int, size: int) -> bytes | None:
        if not size:
            return b""
        try:
            return bytes(self._obstore.get_range(self._store, name, start=start, length=size))
        except FileNotFoundError:
            return None
        except self._errors.BaseError:
            # A range that begins behind the end is an error to some stores, and an empty one to others.
            if self._obstore.head(self._store, name)["size"] <= start:
                return b""
            raise

    def _delete(self, name: str) -> None:
        try:
            self._obstore.delete(self._store, name)
        except FileNotFoundError:
            pass

    def _ask(self, act: Callable[[], T]) -> T:
        """Ask something of the store; say what went wrong, and whether it may pass."""
        errors = self._errors
        try:
            return act()
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise StorageError(f"{self._title} refuses: {_first_line(error)}", hint=_CHECK) from error
        except (errors.NotSupportedError, NotImplementedError, errors.InvalidPathError) as error:
            raise UsageError(f"{self._title}: {_first_line(error)}", hint="use another bucket") from error
        except (errors.BaseError, OSError) as error:
            raise Unavailable(f"{self._title} can't be reached: {_first_line(error)}", hint=_CHECK) from error


def open_object_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStoreBucket:
    """Open a bucket by its URL, such as `s3://bucket/prefix`.

    Options are those of the store, by the names that its environment variables have (`AWS_REGION`, `AWS_ENDPOINT_URL`,
    `AWS_ALLOW_HTTP`, `GOOGLE_SERVICE_ACCOUNT`, ...), which hold where there is no option.
    """
    _, errors = _load()
    from obstore.store import from_url

    config = {name.lower(): value for name, value in (options or {}).items()}
    allow_http = config.pop("aws_allow_http", os.environ.get("AWS_ALLOW_HTTP", "")).lower() == "true"
    kinds: dict[str, Any] = {"client_options": {"allow_http": allow_http, "timeout": timedelta(seconds=30)}}
    if "aws_endpoint_url" in config:
        config["aws_endpoint"] = config.pop("aws_endpoint_url")
    if not url.startswith("memory:"):
        kinds |= {"retry_config": _RETRIES, "config": config}
    else:
        kinds = {}
    try:
        return ObjectStoreBucket(from_url(url, **kinds), url)
    except (errors.BaseError, OSError, ValueError) as error:
        raise UsageError(f"{url} can't be opened: {_first_line(error)}", hint=_CHECK) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _load() -> tuple[Any, Any]:
    """Return obstore and its errors, which are loaded only where a bucket is used."""
    try:
        import obstore
        import obstore.exceptions
    except ImportError as error:
        raise UsageError(f"a bucket needs obstore ({error})", hint=_INSTALL) from error
    return obstore, obstore.exceptions
