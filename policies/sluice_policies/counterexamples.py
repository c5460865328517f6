"""A request that violates a property: found by the solver, and shown as one line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice_policies.evaluate import PRINCIPAL_ACCOUNT, PRINCIPAL_IS_SERVICE, SERVICE_NAME
from sluice_policies.properties import CALLER
from sluice_policies.symbolic import RESOURCE, TLS, SymbolicRequest, z3

_PRINCIPAL_KEYS: Final = (PRINCIPAL_ACCOUNT, PRINCIPAL_IS_SERVICE, SERVICE_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A request that violates a property.

    Attributes:
        action: The action.
        caller: The caller, or None if anonymous.
        resource: The ARN.
        context: The condition keys of the request.
    """

    action: str
    caller: str | None
    resource: str
    context: Mapping[str, str]

    def __str__(self) -> str:
        """Return the request as one line."""
        shown = {key: text for key, text in self.context.items() if key not in _PRINCIPAL_KEYS}
        keys = ", ".join(f"{key}={value!r}" for key, value in sorted(shown.items()))
        return (
            f"{self._who()} calls {self.action} on {self.resource}"
            f" with {keys or 'no condition keys'}"
        )

    def _who(self) -> str:
        service = self.context.get(SERVICE_NAME)
        if service is not None:
            return f"AWS service {service!r}"
        if self.caller is None:
            return "an anonymous caller"
        account = self.context.get(PRINCIPAL_ACCOUNT)
        if account is None or self.caller.startswith("arn:"):
            return self.caller
        return f"a principal of account {account!r}"


def _briefest(solver: z3.Solver, symbolic: SymbolicRequest) -> z3.ModelRef:
    """Return a counterexample without unnecessary condition keys, so that it is easy to read."""
    model = solver.model()
    solver.push()
    solver.add(symbolic.values[TLS].one_of(lambda text: text == "true"))
    if solver.check() == z3.sat:
        model = solver.model()
    else:
        solver.pop()
    for name, value in symbolic.values.items():
        if name not in (RESOURCE, CALLER):
            solver.push()
            solver.add(z3.Not(value.present))
            if solver.check() == z3.sat:
                model = solver.model()
            else:
                solver.pop()
    return model


def counterexample_of(solver: z3.Solver, action: str, symbolic: SymbolicRequest) -> Counterexample:
    """Return the request that a solver found, without unnecessary condition keys."""
    model = _briefest(solver, symbolic)
    there = {
        name: value.read(model)
        for name, value in symbolic.values.items()
        if z3.is_true(model.eval(value.present, model_completion=True))
    }
    return Counterexample(
        action=action,
        caller=there.pop(CALLER, None),
        resource=symbolic.named or symbolic.values[RESOURCE].read(model),
        context={name: text for name, text in there.items() if name != RESOURCE},
    )
