"""connection: one client's connection, from the socket's bytes to the packets' effects, and all of them together."""

from everlog.broker.connection.connection import Connection, file_number_of, peer_of
from everlog.broker.connection.connections import BUFFER_BYTES, Connections
from everlog.broker.connection.poller import Poller, Port
from everlog.broker.connection.referrals import Referral, Referrals
