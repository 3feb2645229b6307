"""`python -m perdure …` is `perdure …`."""

from perdure.cli.main import main

main()
