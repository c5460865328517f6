"""`python -m sluice_cli` runs the `sluice` command."""

from sluice_cli.main import main

main()
