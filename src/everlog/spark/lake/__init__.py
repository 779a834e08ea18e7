"""lake: sealed segments as a Delta table, each row once, and read back as records.

Its names are those of `everlog.spark`; a task imports only the modules that it runs.
"""
