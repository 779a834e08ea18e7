"""sink: frames and streams written to MQTT topics and to Delta tables, each row once.

A task imports only the modules that it runs.
"""
