"""Who may send to the doors of an agent, by token."""

from collections.abc import Collection
from typing import Final

from sluice_protocol.errors import Unauthenticated
from sluice_web.tokens import Operator, name_of_token

LOCAL_SENDER: Final = "local"
"""The sender of all requests to a listener that requires no proof."""


class TokenSenders:
    """The senders of requests over HTTP and of gRPC calls (`CallSenders`)."""

    def __init__(self, tokens: Collection[Operator]) -> None:
        """Bind the known tokens; without any, every request is accepted."""
        self._tokens = tuple(tokens)

    def of_token(self, token: str | None) -> str:
        """Return the owner of a token."""
        if not self._tokens:
            return LOCAL_SENDER
        name = name_of_token(token or "", self._tokens)
        if name is None:
            raise Unauthenticated("the request does not contain a known token")
        return name

    def of_call(self, token: str | None, spiffe: str | None) -> str:
        """Return the owner of a token; an agent knows no client certificates."""
        del spiffe
        return self.of_token(token)
