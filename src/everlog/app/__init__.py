"""app: settings from file, environment and flags, and a broker built from its parts."""

from everlog.app.clock_watch import (
    ClockRecord,
    boot_id,
    boot_us,
    read_clock_record,
    wall_us,
    write_clock_record,
)
from everlog.app.plugins import load_methods
from everlog.app.setting_keys import all_keys, section_meaning
from everlog.app.settings import (
    DEFAULT_HTTP_PORT,
    Settings,
    classes_of,
    groups_of,
    is_loopback,
    limits_of,
    log_arguments,
)
from everlog.app.settings_loader import BadSettings, Loaded, load
from everlog.app.units import parse_bytes, parse_seconds
