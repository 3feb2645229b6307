"""`python client.py …` and the installed `perdure …` are the same program."""

from __future__ import annotations

from cli.app import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
