"""``python -m lookahead`` is the same as the ``lookahead`` command."""

from lookahead.cli import main

if __name__ == "__main__":
    main()
