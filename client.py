"""`python client.py …` and the installed `perdure …` are the same program."""

from perdure.cli.main import main

if __name__ == "__main__":
    main()
