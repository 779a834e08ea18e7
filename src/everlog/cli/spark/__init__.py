"""spark: the commands of `everlog spark`, each a module, and the session, options and results that they share."""
