"""Settings of the console that would have no effect are refused."""

from typing import Any

import pytest

from sluice_console.settings import ConsoleSettings, OidcSettings, PolicySettings
from sluice_protocol.errors import BadUsage


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (ConsoleSettings, {"proxy_operators": "otto"}, "proxy_operators .* proxy_addresses"),
        (ConsoleSettings, {"gateways_tls_name": "gw"}, "gateways_tls_name .* without gateways"),
        (OidcSettings, {"client_id": "console"}, "oidc.client_id .* without oidc.issuer"),
        (OidcSettings, {"operator_roles": "ops"}, "oidc.operator_roles .* without oidc.issuer"),
        (PolicySettings, {"live": True}, "policies.live .* without policies.file"),
    ],
)
def test_a_setting_without_effect_is_refused(
    kind: type[Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadUsage, match=message):
        kind(**settings)


def test_a_token_without_its_url_is_accepted() -> None:
    """A secret that several services share contains it, for example that of the chart."""
    ConsoleSettings(reconciler_token="a", query_token="b")
