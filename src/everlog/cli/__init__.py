"""cli: the `everlog` command, one line of the table below for each subcommand."""

from everlog.cli.commands import COMMANDS, Command, main
