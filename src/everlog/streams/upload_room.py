"""The large values that are being uploaded to a shard: their bytes together, and which of them nobody goes on with."""

from collections import OrderedDict


class UploadRoom:
    """Uploads by stream and name, the one that longest nothing was added to first; kept while their streams are not."""

    def __init__(self) -> None:
        self.bytes = 0
        self._known: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()  # bytes, and when they came

    def set(self, stream: str, upload: str, size: int, time_us: int) -> None:
        """Note that an upload has so many bytes now."""
        self.drop(stream, upload)
        self._known[stream, upload] = size, time_us
        self.bytes += size

    def drop(self, stream: str, upload: str) -> None:
        """Forget an upload that was asked for, or dropped."""
        self.bytes -= self._known.pop((stream, upload), (0, 0))[0]

    def drop_all(self, stream: str) -> None:
        """Forget the uploads of a stream that was removed."""
        for key in [key for key in self._known if key[0] == stream]:
            self.drop(*key)

    def knows(self, stream: str, upload: str) -> bool:
        """Return whether an upload is counted."""
        return (stream, upload) in self._known

    def idle(self, since_us: int) -> list[tuple[str, str]]:
        """Return the uploads that nothing was added to since a time."""
        return [key for key, (_, time_us) in self._known.items() if time_us <= since_us]
