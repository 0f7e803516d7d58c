"""The command line: exit codes and signals, options, and one file per family of commands."""
