"""state: streams and key-value stores as tables, each frame as of one position; a task imports only what it runs."""
