"""`python worker.py …` and the installed `perdure worker …` are the same program."""

from perdure.cli.main import main

if __name__ == "__main__":
    main("worker")
