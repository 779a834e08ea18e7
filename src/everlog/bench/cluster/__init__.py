"""cluster: three brokers with one history, beside the single broker and Mosquitto."""

from everlog.bench.cluster.postgres import binaries, synchronous_pair
from everlog.bench.cluster.three_brokers import measure_brokers
