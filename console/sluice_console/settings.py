"""Settings of `sluice console`."""

from dataclasses import dataclass, field

from sluice_protocol.errors import BadUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePrices:
    """List prices of an object store, without transfer.

    Attributes:
        put_1000_usd: Price of 1 000 PUT requests, USD.
        list_1000_usd: Price of 1 000 LIST requests, USD.
        get_1000_usd: Price of 1 000 GET and HEAD requests, USD.
        gb_month_usd: Price of 10^9 stored bytes for 30 days, USD.
        source: Where the prices are from, with their date.
    """

    put_1000_usd: float = 0.005
    list_1000_usd: float = 0.005
    get_1000_usd: float = 0.0004
    gb_month_usd: float = 0.023
    source: str = "AWS S3 Standard in us-east-1, aws.amazon.com/s3/pricing, March 2026"

    def __post_init__(self) -> None:
        """Check the prices.

        Raises:
            BadUsage: A price is negative.
        """
        for name in ("put_1000_usd", "list_1000_usd", "get_1000_usd", "gb_month_usd"):
            if not getattr(self, name) >= 0:
                raise BadUsage(f"prices.{name} must not be negative: set a price in USD")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Where the console is served, to whom, and which services it reads.

    Attributes:
        listen: Address and port, HOST:PORT; port 0 selects a free port.
        allowed_hosts: Names under which browsers reach the console, without ports, separated by
            commas. The address of the connection is always allowed.
        viewers: Who may read, as `name=<sha256 of the token>`, separated by commas. Without
            viewers, operators and a proxy the console listens on a loopback address only, and
            every visitor is a viewer.
        operators: Who may also resolve conflicts, and approve and stop plans, in the same form.
        reconciler: URLs of reconcilers, separated by commas. Without one, agents are listed from
            the store.
        reconciler_token: The `api_token` of the reconcilers.
        query: URL of a query service, for Explore and Metrics.
        query_token: The `api_token` of the query service.
        proxy_addresses: Addresses of reverse proxies that authenticate users, separated by commas.
            Their field `proxy_user_field` names the user; from other addresses it is ignored.
        proxy_user_field: The request field that contains the user.
        proxy_operators: Users of the proxy that are operators, separated by commas; the others are
            viewers.
        gateways: URLs of gateways whose counters of store calls are read for the cost, separated
            by commas. Without them the requests are estimated from the accepted batches.
        prices: List prices of the store.
        trusted_keys: Base64 of the auditors' raw public keys, separated by commas, with which
            certificates are verified.
        session_s: Time after which a login ends, seconds.
        sample_s: Time between two samples of the overview, seconds.
        list_batches_max: Most manifests that are listed to find gaps without a reconciler.
    """

    listen: str = "127.0.0.1:8484"
    allowed_hosts: str = ""
    viewers: str = ""
    operators: str = ""
    reconciler: str = ""
    reconciler_token: str = field(default="", repr=False)
    query: str = ""
    query_token: str = field(default="", repr=False)
    proxy_addresses: str = ""
    proxy_user_field: str = "X-Forwarded-User"
    proxy_operators: str = ""
    gateways: str = ""
    prices: StorePrices = field(default_factory=StorePrices)
    trusted_keys: str = ""
    session_s: float = 8 * 3600.0
    sample_s: float = 10.0
    list_batches_max: int = 200_000

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadUsage: A number is out of range.
        """
        lows = {"session_s": 60.0, "sample_s": 1.0, "list_batches_max": 0.0}
        for name, low in lows.items():
            if not getattr(self, name) >= low:
                raise BadUsage(
                    f"cannot serve the console: {name} must be at least {low:g},"
                    f" {name}=`{getattr(self, name)}`"
                )


def split_list(text: str) -> tuple[str, ...]:
    """Return the items of a setting that are separated by commas, without empty ones."""
    return tuple(item.strip() for item in text.split(",") if item.strip())
