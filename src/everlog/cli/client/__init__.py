"""client: the commands that speak MQTT to a broker, and the connection, options and formats that they share."""
