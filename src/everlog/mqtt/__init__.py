"""mqtt: bytes in, packets out, and back again, without I/O."""
