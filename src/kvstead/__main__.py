"""Runs the command line as `python -m kvstead`."""

from kvstead.cli.main import main

if __name__ == "__main__":
    main()
