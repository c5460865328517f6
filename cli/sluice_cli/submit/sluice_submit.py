"""The `sluice` command as a script for `spark-submit`, which takes Python by its `.py` alone.

It stands in a folder of its own: Python puts a script's folder first on its path, and beside the
commands `queue.py` would be taken for the standard library's.
"""

from sluice_cli.main import main

if __name__ == "__main__":
    main()
