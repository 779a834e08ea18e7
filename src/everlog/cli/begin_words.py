"""Beginnings in the past as people say them, turned into what a broker reads: `yesterday`, `today`, `2026-01-31`."""

import re
from datetime import date, datetime, timedelta

from everlog.base import UsageError

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DAYS_AGO = {"today": 0, "yesterday": 1}


def exact_begin(text: str, now: datetime | None = None) -> str:
    """Return a day as the time at which it begins where the command runs; any other text as it is."""
    here = (now or datetime.now()).astimezone()
    if text in _DAYS_AGO:
        day = here.date() - timedelta(days=_DAYS_AGO[text])
    elif _DATE.fullmatch(text):
        try:
            day = date.fromisoformat(text)
        except ValueError:
            raise UsageError(f"there is no day {text!r}", hint="write it like 2026-01-31") from None
    else:
        return text
    return datetime(day.year, day.month, day.day).astimezone().isoformat()
