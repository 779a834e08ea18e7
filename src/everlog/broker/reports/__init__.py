"""reports: the broker in numbers, for `$SYS`, for metrics, and for who loses unread messages to retention."""

from everlog.broker.reports.disk_watch import NO_SPACE, watch_space
from everlog.broker.reports.numbers import Numbers, Reports
from everlog.broker.reports.slices import run_in_slices
from everlog.broker.reports.survey import Survey
from everlog.broker.reports.sys_topics import SysTopics
from everlog.broker.reports.unread_loss import NOTHING, Doomed, UnreadLoss
