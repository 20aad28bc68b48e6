"""The command line. Commands read their arguments, call the layers below and print; nothing else."""
