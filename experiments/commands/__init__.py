"""Commands: one file a subcommand of `pipeplan`; each has `add_arguments(parser)` and `run(arguments) -> exit code`."""
