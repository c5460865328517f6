"""The `sluice` command as a script for `spark-submit`, which accepts Python only as a `.py` file.

The script has a separate folder because Python puts a script's folder first on its path. Next to
the commands, `queue.py` would replace the standard library's module.
"""

from sluice_cli.main import main

if __name__ == "__main__":
    main()
