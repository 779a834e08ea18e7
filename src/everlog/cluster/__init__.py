"""cluster: the message log of several brokers; PostgreSQL commits, a bucket remembers, every broker follows."""
