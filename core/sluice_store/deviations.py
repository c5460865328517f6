"""Where each known store deviates from the port's promises, and how that shows.

The conformance tests assert every line: a server that stops deviating fails them too, so that this
table stays true. `docs/store.md` prints it.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One promise that one server does not keep.

    Attributes:
        check: The conformance check that shows it.
        promise: The promise that the check names when it fails.
        seen: What stands in the failure as seen.
        effect: What it means for sluice.
        always: Whether it shows in every run; a race shows only at times.
    """

    check: str
    promise: str
    seen: str
    effect: str
    always: bool = True


LOCAL: Final = (
    Deviation(
        check="check_key_below_key",
        promise="a key may stand below another key",
        seen="StoreMisconfigured",
        effect="none: no key of the layout is the folder of another",
    ),
)

VERSITYGW: Final = (
    Deviation(
        check="check_key_below_key",
        promise="a key may stand below another key",
        seen="ObjectParentIsFile",
        effect="none: no key of the layout is the folder of another",
    ),
)

MOTO: Final = (
    Deviation(
        check="check_head_tells_checksum",
        promise="a HEAD tells the verified sha256",
        seen="None",
        effect="every blob that exists already is read and hashed, not only looked at",
    ),
    Deviation(
        check="check_wrong_checksum",
        promise="a wrong checksum is refused",
        seen="Applied",
        effect="a body that was corrupted on its way would be stored: never an authority",
    ),
    Deviation(
        check="check_counter",
        promise="no increment is lost or doubled",
        seen="",
        effect="its check and its write are not under one lock: never an authority",
        always=False,
    ),
    Deviation(
        check="check_race_replace",
        promise="exactly one of the racing conditional writes wins",
        seen="",
        effect="as above",
        always=False,
    ),
    Deviation(
        check="check_race_create",
        promise="exactly one of the racing conditional writes wins",
        seen="",
        effect="as above",
        always=False,
    ),
)

KNOWN: Final[dict[str, tuple[Deviation, ...]]] = {
    "local": LOCAL,
    "memory": (),
    "memory over HTTP": (),
    "moto": MOTO,
    "versitygw": VERSITYGW,
}
"""By server, in the versions that `docs/store.md` names."""


def deviation_of(server: str, check: str) -> Deviation | None:
    """Gives the known deviation of a server in a check, or None when it must pass."""
    return next((line for line in KNOWN[server] if line.check == check), None)
