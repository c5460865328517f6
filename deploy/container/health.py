"""Exit with 0 if the service of a container is ready: `HEALTH_URL`, by default of a gateway."""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 2.0
URL_DEFAULT = "http://127.0.0.1:8080/readyz"


def main() -> int:
    """Send one request; return 1 and print the reason if it does not succeed."""
    url = os.environ.get("HEALTH_URL", URL_DEFAULT)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S):  # noqa: S310 - set by the operator
            return 0
    except (urllib.error.URLError, OSError, ValueError) as error:
        sys.stderr.write(f"not ready: {error}, url={url}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
