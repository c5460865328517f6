"""Settings of `sluice console`."""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.settings_checks import check_effects

SESSION_S_MIN: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """An identity provider with OpenID Connect.

    Attributes:
        issuer: The issuer, `https://…`, exactly as its configuration names it; empty for none.
        client_id: The id of the console at the provider.
        client_secret: Its secret; empty for a public client.
        redirect_url: The public URL of the console's path `/v1/oidc/callback`, as it is registered
            at the provider.
        scope: The scopes of a login.
        name_claim: The claim with the name of a user; the subject if it is missing.
        roles_claim: The claim with the roles of a user; a dot separates names of nested claims.
        operator_roles: Values of it that make a user an operator, separated by commas.
        viewer_roles: Values of it that make a user a viewer, separated by commas; empty for every
            user of the provider.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    redirect_url: str = ""
    scope: str = "openid profile"
    name_claim: str = "preferred_username"
    roles_claim: str = "groups"
    operator_roles: str = ""
    viewer_roles: str = ""

    def __post_init__(self) -> None:
        if not self.issuer:
            check_effects(
                (f"oidc.{name}", getattr(self, name), "oidc.issuer", self.issuer)
                for name in (
                    *("client_id", "client_secret", "redirect_url"),
                    *("operator_roles", "viewer_roles"),
                )
            )
            return
        for name in ("client_id", "redirect_url", "roles_claim"):
            if not getattr(self, name):
                raise BadUsage(f"oidc.{name} is missing: set it, or remove oidc.issuer")
        if not self.redirect_url.endswith("/v1/oidc/callback"):
            raise BadUsage(
                "oidc.redirect_url must end with /v1/oidc/callback,"
                f" redirect_url=`{self.redirect_url}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The policies of the bucket, whose denials are proved.

    Attributes:
        file: The settings file of `sluice policies`; empty for none.
        live: Whether the documents of the bucket are proved. Otherwise those that sluice renders
            from the file are. They are read with the profile of the auditor in the file, or with
            the credentials of the console, from the endpoint of the AWS environment.
    """

    file: str = ""
    live: bool = False
    prove_s: ClassVar[float] = 600.0
    """Time between two proofs: each takes seconds of processor time."""

    def __post_init__(self) -> None:
        check_effects([("policies.live", self.live, "policies.file", self.file)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Where the console is served, to whom, and which services it reads.

    Attributes:
        listen: Address and port, HOST:PORT; port 0 selects a free port.
        allowed_hosts: Names under which clients reach the service, without ports, separated by
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
        gateways: URLs of gateway processes whose metrics are read, separated by commas: what is
            wrong with them, and their store calls. `dns+http://NAME:PORT` is every
            address of a name. Without them the requests of the cost are estimated from the
            accepted batches.
        gateways_tls_name: The name in the certificate of gateways with TLS, if their URLs contain
            another one or an address.
        prices: TOML file with the list prices of the store, as for `sluice cost --prices`. Empty
            for those of Amazon S3.
        oidc: An identity provider.
        policies: The policies of the bucket.
        trusted_keys: Base64 of the auditors' raw public keys, separated by commas, with which
            certificates are verified.
        session_s: Time after which a login ends, seconds.
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
    gateways_tls_name: str = ""
    prices: str = ""
    oidc: OidcSettings = field(default_factory=OidcSettings)
    policies: PolicySettings = field(default_factory=PolicySettings)
    trusted_keys: str = ""
    session_s: float = 8 * 3600.0
    sample_s: ClassVar[float] = 10.0
    """Time between two samples of the overview, each of about ten requests to the store."""
    list_batches_max: ClassVar[int] = 200_000
    """Manifests that are listed to find gaps without a reconciler: 200 LIST requests."""

    def __post_init__(self) -> None:
        check_effects(
            [
                (
                    *("proxy_operators", self.proxy_operators),
                    *("proxy_addresses", self.proxy_addresses),
                ),
                ("gateways_tls_name", self.gateways_tls_name, "gateways", self.gateways),
            ]
        )
        if not self.session_s >= SESSION_S_MIN:
            raise BadUsage(
                f"cannot serve the console: session_s must be at least {SESSION_S_MIN:g},"
                f" session_s=`{self.session_s}`"
            )


def split_list(text: str) -> tuple[str, ...]:
    """Return the items of a setting that are separated by commas, without empty ones."""
    return tuple(item.strip() for item in text.split(",") if item.strip())
