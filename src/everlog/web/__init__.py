"""web: metrics and health of a broker over HTTP."""

from everlog.web.health import Check, clock_is_believed, disk_has_room, is_listening, log_is_writable, not_stopping
from everlog.web.prometheus import Exposition
from everlog.web.server import Web, start_web
