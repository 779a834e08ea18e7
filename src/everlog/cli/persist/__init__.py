"""persist: the commands for streams, key-value stores and the servers that keep them."""
