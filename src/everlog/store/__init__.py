"""store: topics meet the log; what was kept is found by filter and position."""
