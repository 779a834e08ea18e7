"""delivery: the way of a message through the broker, to the log and to every subscriber; `Router` is its facade."""

from everlog.broker.delivery.catchup import Catchup
from everlog.broker.delivery.cold_reader import ColdReader, Places
from everlog.broker.delivery.history import History
from everlog.broker.delivery.ports import Forwarder, Log, Sink
from everlog.broker.delivery.read_rights import ReadRights
from everlog.broker.delivery.redelivery import batch_of
from everlog.broker.delivery.retained_columns import RetainedColumns
from everlog.broker.delivery.retained_messages import RetainedMessages
from everlog.broker.delivery.retained_saving import RetainedSaving, Unsaved
from everlog.broker.delivery.router import Router
from everlog.broker.delivery.spills import Spills
