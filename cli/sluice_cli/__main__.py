"""`python -m sluice_cli` is the `sluice` command of this interpreter."""

from sluice_cli.main import main

main()
