"""`python worker.py …` and the installed `perdure worker …` are the same program."""

import typer

from perdure.cli.worker import main

if __name__ == "__main__":
    typer.run(main)
