"""The command line `dspark-ext`: one file per command. docs/command-line.md."""
